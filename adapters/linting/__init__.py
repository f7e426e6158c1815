"""The mistakes that ``Lint`` names: what is looked at, and one module for each kind of them."""
