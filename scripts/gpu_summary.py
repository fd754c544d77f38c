"""Writes suite.json from what scripts/gpu_suite.sh has run so far.

Usage: gpu_summary.py OUT STEPS [--verdict]. With `--verdict`, also prints one line per step and
exits with 1 unless every step passed.
"""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

_PACKAGES = ("numpy", "pytest", "gymnasium", "cupy", "nvidia-cuda-nvrtc")


def summarise(out: Path, steps: Path) -> dict:
    """Collects the machine, the versions and the steps."""
    rows = [line.split("\t") for line in (steps / "table").read_text().splitlines()]
    return {
        "commit": os.environ.get("RLBATCH_COMMIT")
        or _output("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        **_described_once(steps / "machine.json"),
        "steps": [_step(out, steps, *row) for row in rows],
    }


def _described_once(cache: Path) -> dict:
    if not cache.exists():  # PyTorch takes seconds to import.
        cache.write_text(json.dumps(_machine()))
    return json.loads(cache.read_text())


def _machine() -> dict:
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if has_gpu else None,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {
            dist.name: dist.version
            for dist in importlib.metadata.distributions()
            if (dist.name or "").startswith(_PACKAGES)
        },
    }


def _step(out: Path, steps: Path, name: str, code: str, start: str, end: str) -> dict:
    result: dict = {
        "name": name,
        "exit_code": int(code) if code.isdigit() else None,
        "seconds": round(float(end) - float(start), 2),
    }
    if not code.isdigit():
        return {**result, "problem": code}
    if name == "gpu_tests":
        result["tests"] = _tests(out / "gpu_tests.xml")
        empty = "" if result["tests"].get("passed") else "no test passed"
    else:
        output = (steps / f"{name}.out").read_text()
        result["figures"] = _last_json(output)
        empty = _missing(name, output, result["figures"])
    result["problem"] = empty if code == "0" else f"exit code {code}"
    return result


def _missing(name: str, output: str, figures: dict | None) -> str:
    """Says what a step that ended well has not done; "" for nothing."""
    if not figures:
        return "no JSON object at the end"
    if name.startswith("learning_") and not figures["n_solved"]:
        return "the score was not reached"
    if name == "kernel_profile" and "gpu__time_duration.sum" not in output:
        return "no kernel was profiled"
    return ""


def _lost(steps: Path, found: list[dict]) -> list[dict]:
    """Returns the steps that have begun and not told how they ended."""
    begun = (steps / "begun").read_text().split() if (steps / "begun").exists() else []
    names = set(begun) - {step["name"] for step in found}
    return [{"name": name, "problem": "lost", "seconds": None} for name in sorted(names)]


def _tests(report: Path) -> dict:
    """Counts a JUnit report's outcomes; says why for each test that did not pass."""
    try:
        cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError):  # The tests were cut short.
        return {}
    counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    not_passed = []
    for case in cases:
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        outcome = bad[0].tag.replace("failure", "failed") if bad else "passed"
        counts[outcome] += 1
        if bad:
            test = f"{case.get('classname')}::{case.get('name')}"
            reason = (bad[0].get("message") or "")[:300]
            not_passed.append({"test": test, "outcome": outcome, "reason": reason})
    return {**counts, "not_passed": not_passed}


def _last_json(text: str) -> dict | None:
    """Reads the JSON object that a benchmark ends with; a tool that runs it may add lines."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        return None


def _output(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def main() -> None:
    """Writes suite.json; with `--verdict`, judges it."""
    out, steps = map(Path, sys.argv[1:3])
    suite = summarise(out, steps)
    (out / "suite.json").write_text(json.dumps(suite, indent=2) + "\n")
    if sys.argv[3:] == ["--verdict"]:
        suite["steps"] += _lost(steps, suite["steps"])
        for step in suite["steps"]:
            print(f"{step['name']}: {step['problem'] or 'passed'} ({step['seconds']} s)")
        is_empty = all(step["name"] == "compile" for step in suite["steps"])
        if is_empty:
            print("nothing was run: expected ONLY to fit the name of a step")
        sys.exit(is_empty or any(step["problem"] for step in suite["steps"]))


if __name__ == "__main__":
    main()
