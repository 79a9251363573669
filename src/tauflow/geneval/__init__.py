"""Pictures judged by their prompts: the rules and records of GenEval, detectors and the CLIP score."""

from tauflow.geneval.clip import CLIP, Clip, ClipColours, ClipScore
from tauflow.geneval.detectors import MASK2FORMER, Detector, Mask2Former, confident
from tauflow.geneval.folders import Prompted, read_folder, write_folder
from tauflow.geneval.records import CLASSES, COLOURS, records
from tauflow.geneval.rules import (
    RELATIONS,
    TASKS,
    Box,
    Detection,
    GenEvalError,
    Objects,
    Record,
    Score,
    Scored,
    Summary,
    Verdict,
    evaluate,
    relation,
    summarise,
)

__all__ = [
    "CLASSES",
    "CLIP",
    "COLOURS",
    "MASK2FORMER",
    "RELATIONS",
    "TASKS",
    "Box",
    "Clip",
    "ClipColours",
    "ClipScore",
    "Detection",
    "Detector",
    "GenEvalError",
    "Mask2Former",
    "Objects",
    "Prompted",
    "Record",
    "Score",
    "Scored",
    "Summary",
    "Verdict",
    "confident",
    "evaluate",
    "read_folder",
    "records",
    "relation",
    "summarise",
    "write_folder",
]
