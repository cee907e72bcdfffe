"""An extension of griffe: the page of the Python interface shows settings with their help texts."""

import ast
import dataclasses
import importlib

import griffe


class HelpTexts(griffe.Extension):
    """Makes ``name: type = HfArg(default=..., help=...)`` an attribute with a docstring.

    The texts are those of --help, some of which are put together when the module is imported.
    """

    def on_attribute_instance(self, *, node, attr: griffe.Attribute, **kwargs) -> None:
        """Give an attribute that is such a field its help text and its default."""
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)):
            return
        if ast.unparse(node.value.func) != "HfArg":
            return
        module = importlib.import_module(attr.module.path)
        arguments = getattr(module, attr.parent.name)
        fields = {field.name: field for field in dataclasses.fields(arguments)}
        help_text = fields[attr.name].metadata["help"].replace("%%", "%")
        attr.docstring = griffe.Docstring(help_text, lineno=node.lineno, parent=attr)
        defaults = [word.value for word in node.value.keywords if word.arg == "default"]
        attr.value = ast.unparse(defaults[0]) if defaults else None
