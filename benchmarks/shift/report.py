"""The tables of the shift league."""
SPLIT = "split conformal"
def markdown(found):
    return ""
