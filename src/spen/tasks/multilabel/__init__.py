"""Label sets: multi-label classification by energy minimisation (Belanger and McCallum 2016)."""
