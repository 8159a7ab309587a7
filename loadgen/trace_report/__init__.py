"""What is shown of traces: tables in the terminal, and a page with plots."""

from loadgen.trace_report.page import render_page
from loadgen.trace_report.text import print_drawn, print_fit, print_inspection

__all__ = ["print_drawn", "print_fit", "print_inspection", "render_page"]
