"""An extension of griffe: the page of the Python interface shows a setting's help text, as --help does."""

import ast

import griffe


class HelpTexts(griffe.Extension):
    """Makes ``name: type = HfArg(default=..., help="...")`` an attribute with a docstring and a default."""

    def on_attribute_instance(self, *, node, attr: griffe.Attribute, **kwargs) -> None:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)):
            return
        if ast.unparse(node.value.func) != "HfArg":
            return
        words = {keyword.arg: keyword.value for keyword in node.value.keywords}
        help_text = ast.literal_eval(words["help"]).replace("%%", "%")
        attr.docstring = griffe.Docstring(help_text, lineno=node.lineno, parent=attr)
        attr.value = ast.unparse(words["default"]) if "default" in words else None
