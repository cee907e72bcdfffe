"""A hook of mkdocs: pages outside of docs/, and their pictures, are part of the site."""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "studies/*.md",
    "studies/results/*/results.*",
    "benchmarks/results/*/results.*",
    "examples/*.py",
    "examples/items/**/*.md",
)
SUFFIXES = (".md", ".png", ".json", ".cff", ".py")


def on_files(files, config):
    outside = {"index.md": ROOT / "README.md"}
    for pattern in PATTERNS:
        for path in ROOT.glob(pattern):
            if path.suffix in SUFFIXES:
                outside[path.relative_to(ROOT).as_posix()] = path
    for name, path in outside.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links between folders of the repository, as they stand on the site, where docs/
    is the root.
    """
    if page.file.abs_src_path.startswith(config.docs_dir):
        # A page of docs/howto/ leaves docs/ with ../../, and the folder of that page with ../.
        inside = "../" * page.file.src_uri.count("/")
        markdown = markdown.replace(f"]({inside}../README.md", f"]({inside}index.md")
        return markdown.replace(f"]({inside}../", f"]({inside}")
    return markdown.replace("](docs/", "](").replace("../docs/", "../")
