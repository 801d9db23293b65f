"""Property tests of 50 examples, without a deadline: no test looks at the clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quantcli", deadline=None, max_examples=50)
settings.load_profile("quantcli")
