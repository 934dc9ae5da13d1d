"""Models for other programs: ONNX, torch.export, AOTInductor, with the whole descent inside."""

from spen.export.exportable import TOLERANCE, Exportable, Written, export_program, write
from spen.export.onnx import export_onnx
from spen.export.predictor import BATCH, Shapes, Size

__all__ = [
    "BATCH",
    "TOLERANCE",
    "Exportable",
    "Shapes",
    "Size",
    "Written",
    "export_onnx",
    "export_program",
    "write",
]
