"""The words of a PDF's text layer, and whether they can be trusted."""

from budgetvdr.textlayer.judge import Verdict, clean, judge, unsupported_script

__all__ = ["Verdict", "clean", "judge", "unsupported_script"]
