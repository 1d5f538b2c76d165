"""The page at `/`: one file that needs nothing else, and headers under which nothing else runs."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources


def body() -> bytes:
    """The page as it is sent."""
    return resources.files("linnet.serve").joinpath("page.html").read_bytes()


def headers(page: bytes) -> dict[str, str]:
    """What is sent with the page: it runs and shows its own code alone, and talks to its server."""
    policy = [
        "default-src 'none'",
        f"script-src {allowed(page, b'script')}",
        f"style-src {allowed(page, b'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": "; ".join(policy),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def allowed(page: bytes, element: bytes) -> str:
    """The hash of the page's one script or style, as a Content-Security-Policy names it."""
    [inner] = re.findall(rb"<%b\b[^>]*>(.*?)</%b>" % (element, element), page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inner).digest()).decode()
    return f"'sha256-{digest}'"
