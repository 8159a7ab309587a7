"""What gates found, for machines: JUnit XML, and Markdown for a CI's summary page.

Of a run that is INVALID both say so, as a failed test case and as the heading, whatever its gates
found. `notes` is what else a reader must know: reasons of the verdict, another trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree

from loadgen.gate import Finding
from loadgen.report.markdown import plain
from loadgen.verdict import Grade

SAYS_NOTHING: Final = "the run is INVALID: its gates say nothing"


def as_junit(
    run_id: str, findings: Sequence[Finding], grade: Grade, notes: Sequence[str] = ()
) -> bytes:
    """One test case a gate, and one for an INVALID verdict; a failed one carries its reason."""
    cases = [(finding.gate.text, finding.passed, finding.text) for finding in findings]
    if grade is Grade.INVALID:
        cases.insert(0, ("verdict", False, SAYS_NOTHING))
    failed = sum(not passed for _, passed, _ in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed)}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": run_id, **counts})
    for name, passed, text in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "loadgen", "name": name})
        if not passed:
            ElementTree.SubElement(case, "failure", {"message": text})
        else:
            ElementTree.SubElement(case, "system-out").text = text
    if notes:
        ElementTree.SubElement(suite, "system-out").text = "\n".join(notes)
    ElementTree.indent(suites)
    content: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def as_markdown(
    run_id: str, findings: Sequence[Finding], grade: Grade, notes: Sequence[str] = ()
) -> str:
    """A heading, what else is to be known, and a list, the failed first."""
    failed = [finding for finding in findings if not finding.passed]
    passed = [finding for finding in findings if finding.passed]
    words = f"{len(failed)} of {len(findings)} gates failed" if failed else "all gates passed"
    if grade is Grade.INVALID:
        words = SAYS_NOTHING
    lines = [f"### loadgen `{run_id}`: {words}", ""]
    if notes:
        lines += [*(f"- {plain(note)}" for note in notes), ""]
    lines += [
        f"- {'❌' if not one.passed else '✅'} `{one.gate.text}`: {_rest(one)}"
        for one in (*failed, *passed)
    ]
    return "\n".join(lines) + "\n\n"


def _rest(finding: Finding) -> str:
    return finding.text.removeprefix(f"{finding.gate.text}: ").replace("|", "\\|")
