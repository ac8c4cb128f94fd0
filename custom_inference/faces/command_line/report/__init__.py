"""``report.html``: what a stranger wants to know of a fit, on one page that needs no other file and no network."""
