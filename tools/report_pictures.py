"""Take the pictures of a report that the documentation shows: docs/images/report-{light,dark,phone}.png.

Run ``python tools/report_pictures.py`` where Chromium and chromedriver are installed (``make browser``).
"""

from __future__ import annotations

import io
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from sklearn.datasets import load_diabetes

import vhat

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TRAINED = 400
"""Rows of the table that the model is fitted to; the others are held out, as on the page about the command line."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GAP = 23
"""Grey pixels between the three parts of the picture of a phone."""


def main() -> None:
    """Fit, report, and take the pictures."""
    table = load_diabetes(as_frame=True, scaled=False)
    X, y = table.data, table.target
    network = vhat.NetworkRegressor((4,)).fit(X[:TRAINED], y[:TRAINED])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vhat.VhatWarning)
            held_out = (X[TRAINED:], y[TRAINED:])
            network.report(page, held_out=held_out, response="disease progression (score)")
        take(page, 1200, 1440, [0]).save(IMAGES / "report-light.png")
        take(page, 1200, 1264, ["Residuals"], dark=True).save(IMAGES / "report-dark.png")
        parts = [0, "Predictions and observations", "Coverage by part of the data"]
        take(page, 386, 1000, parts).save(IMAGES / "report-phone.png")


def take(page: Path, width: int, height: int, places: list[int | str], *, dark: bool = False) -> Image.Image:
    """Return what a window shows, scrolled to each place: pixels from the top, or the text of a heading."""
    options = Options()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    with webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))) as browser:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.get(page.as_uri())
        shots = []
        for place in places:
            browser.execute_script(
                """
                const [place] = arguments;
                const headings = [...document.querySelectorAll("h2, h3")];
                const heading = typeof place === "string" && headings.find((each) => each.textContent.includes(place));
                const top = heading ? heading.getBoundingClientRect().top + window.scrollY - 30 : place;
                window.scrollTo({ top, behavior: "instant" });
                """,
                place,
            )
            shots.append(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB"))
    gap = np.full((height, GAP, 3), 200, dtype=np.uint8)
    columns = [np.asarray(shots[0])]
    for shot in shots[1:]:
        columns += [gap, np.asarray(shot)]
    return Image.fromarray(np.concatenate(columns, axis=1))


if __name__ == "__main__":
    main()
