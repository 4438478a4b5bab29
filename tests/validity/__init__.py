"""Statistical checks: intervals against the noise that they speak of, redrawn and refitted many times."""
