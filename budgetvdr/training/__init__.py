"""Training of encoders whose depth and width can be chosen per query; needs `pip install budgetvdr[train]`.

Nothing here is imported by the rest of the package: searching never needs torch.
"""
