"""Set against set: how alike a query and a page are."""
