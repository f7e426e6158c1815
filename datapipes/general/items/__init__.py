"""Items of any kind: repeat, regroup, divide, join, number and cache them."""
