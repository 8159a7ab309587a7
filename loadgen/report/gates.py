"""What gates found, for machines: JUnit XML, and Markdown for a CI's summary page."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from loadgen.gate import Finding


def as_junit(run_id: str, findings: Sequence[Finding]) -> bytes:
    """One test case a gate; a failed one carries its reason."""
    failed = sum(not finding.passed for finding in findings)
    counts = {"tests": str(len(findings)), "failures": str(failed)}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": run_id, **counts})
    for finding in findings:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "loadgen", "name": finding.gate.text}
        )
        if not finding.passed:
            ElementTree.SubElement(case, "failure", {"message": finding.text})
        else:
            ElementTree.SubElement(case, "system-out").text = finding.text
    ElementTree.indent(suites)
    content: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def as_markdown(run_id: str, findings: Sequence[Finding]) -> str:
    """A heading and a list, the failed first."""
    failed = [finding for finding in findings if not finding.passed]
    passed = [finding for finding in findings if finding.passed]
    words = f"{len(failed)} of {len(findings)} gates failed" if failed else "all gates passed"
    lines = [f"### loadgen `{run_id}`: {words}", ""]
    lines += [
        f"- {'❌' if not one.passed else '✅'} `{one.gate.text}`: {_rest(one)}"
        for one in (*failed, *passed)
    ]
    return "\n".join(lines) + "\n\n"


def _rest(finding: Finding) -> str:
    return finding.text.removeprefix(f"{finding.gate.text}: ").replace("|", "\\|")
