"""python -m benchmarks: the strategies; python -m benchmarks.rounding: AD³ against ILP."""

from benchmarks.strategies import main

main()
