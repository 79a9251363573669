"""Everything that produces evidence: studies, speed, figures. Run it with `python -m benchmarks NAME`."""

import re


def study_name(class_name: str) -> str:
    """Return the name of a study on the command line: image_orders for ImageOrders, text for TextStudy."""
    return "_".join(re.findall("[A-Z][a-z0-9]*", class_name.removesuffix("Study"))).lower()
