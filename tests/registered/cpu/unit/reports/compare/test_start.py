"""The imports of a comparison of two reports."""

import subprocess
import sys


def test_reading_and_comparing_reports_imports_no_numbers_library():
    script = (
        "import sys; import specmatrix.reports.compare, specmatrix.reports.store; "
        "print([name for name in ('numpy', 'scipy', 'pandas', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
