"""Runs an ONNX file on the inputs of an npz file and compares. Needs numpy and onnxruntime, and nothing else.

python run_onnx.py FILE.onnx CASES.npz [--forbid]

CASES.npz holds arrays `0/NAME` … for the inputs of each case, and `0/y` … for the answers. --forbid makes any import of
torch or spen an error, for an environment that has them.
"""

import importlib.abc
import json
import sys


class Forbidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "spen", "onnx", "onnxscript"):
            raise ImportError(f"{name} must not be needed")


if "--forbid" in sys.argv:
    sys.meta_path.insert(0, Forbidden())

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

session = onnxruntime.InferenceSession(sys.argv[1])
cases = np.load(sys.argv[2])
result = {"differences": [], "shapes": [], "torch": "torch" in sys.modules}
for number in sorted({name.split("/")[0] for name in cases}):
    (y,) = session.run(["y"], {value.name: cases[f"{number}/{value.name}"] for value in session.get_inputs()})
    expected = cases[f"{number}/y"]
    assert y.shape == expected.shape, (y.shape, expected.shape)
    result["differences"].append(float(np.abs(y - expected).max()))
    result["shapes"].append(list(y.shape))
print(json.dumps(result))
