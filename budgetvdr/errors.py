"""Every error the package raises on purpose.

    BudgetVDRError
    ├── SourceError            a file, folder or image cannot be turned into pages
    │   ├── SourceNotFoundError
    │   ├── UnreadableFileError
    │   ├── PasswordError
    │   └── PageError          one page of an otherwise good file
    ├── BudgetError            a budget that is wrong in itself or that the bundle cannot serve
    ├── QueryError             an empty, oversized or otherwise unusable query, k or filter
    ├── BundleError            an encoder bundle that is missing, damaged or too new
    ├── EncodingError          an encoder produced something that is not a set of finite vectors
    ├── ProviderError          an execution provider this machine cannot run
    ├── CompressionError       a compression method lacks something that it needs
    ├── BenchmarkError         an evaluation set that is missing, malformed, or not what the index holds
    ├── MissingExtraError      an optional dependency is not installed (also an ImportError)
    └── IndexStoreError        an index on disk
        ├── IndexFormatError   not an index, or an index of another format version
        ├── IndexMismatchError made by another bundle or with other settings
        ├── ReadOnlyError
        ├── MetadataError      metadata that cannot be stored beside what is there
        └── StorageError       the disk or object store refused a read or write

Messages name the thing, what was expected, what was found, and what to do.
"""

from functools import partial


class BudgetVDRError(Exception):
    """Base class of every error raised on purpose by budgetvdr."""


class SourceError(BudgetVDRError):
    """A source cannot be turned into pages."""


class SourceNotFoundError(SourceError):
    """A path does not exist, or a folder or pattern holds nothing readable."""


class UnreadableFileError(SourceError):
    """A file exists but is not a readable PDF or image, or has no pages."""


class PasswordError(SourceError):
    """A PDF needs a password, or the one given is wrong."""


class PageError(SourceError):
    """One page of a file cannot be read; the other pages may be fine.

    page_num: the page, counted from 1.
    """

    def __init__(self, message: str, *, page_num: int) -> None:
        super().__init__(message)
        self.page_num = page_num

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), page_num=self.page_num), self.args


class BudgetError(BudgetVDRError):
    """A budget is wrong in itself, or the bundle or index cannot serve it."""


class QueryError(BudgetVDRError):
    """A query, a k or a filter that cannot be searched with."""


class BundleError(BudgetVDRError):
    """An encoder bundle is missing, damaged, incomplete or of a newer format."""


class EncodingError(BudgetVDRError):
    """An encoder produced vectors that are not finite or not of the promised shape."""


class CompressionError(BudgetVDRError):
    """A compression method lacks something that it needs of a page or a bundle, or pairs to calibrate with."""


class BenchmarkError(BudgetVDRError):
    """An evaluation set is missing a file, has a malformed line, or does not fit the index."""


class ProviderError(BudgetVDRError):
    """An onnxruntime execution provider was asked for that is not there or cannot be used."""


class IndexStoreError(BudgetVDRError):
    """Base class of errors about an index on disk."""


class IndexFormatError(IndexStoreError):
    """A folder is not an index, or it is an index of another format version."""


class IndexMismatchError(IndexStoreError):
    """An index was made with another bundle or other settings than those asked for."""


class ReadOnlyError(IndexStoreError):
    """A write was asked of an index opened read-only."""


class MetadataError(IndexStoreError):
    """Metadata has an unusable key, or a value type that differs from what is stored."""


class StorageError(IndexStoreError):
    """The disk or object store refused a read or write; the index stays as it was."""


class MissingExtraError(BudgetVDRError, ImportError):
    """An optional dependency is needed; the message carries the pip line."""
