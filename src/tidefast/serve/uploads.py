"""Images out of the body of a request, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections.abc import AsyncGenerator

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from tidefast.serve import images
from tidefast.serve.interface import StreamService
from tidefast.serve.limits import ByteAccount
from tidefast.serve.refused import RefusedError

_SWALLOW = 2.0  # seconds
_SWALLOWED = 64 * 2**20  # bytes; they are thrown away as they come
_SLOW = 2**20  # bytes that decoding an image weighs: always worth a thread, however small the file


async def read_images(request: Request, service: StreamService, account: ByteAccount) -> images.ImageArray:
    """The images in a request's body; what they take is charged to `account`."""
    limits = service.settings
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (*images.FORMATS, images.NPY, "multipart/form-data"):
        raise RefusedError(
            "unsupported",
            f"images come as image/png, image/jpeg, multipart/form-data or {images.NPY}, got {kind[:60]!r}",
        )
    body = _charged(_bounded(request, limits.max_body), account)
    if kind == "multipart/form-data":
        files = await _files(request, body, limits.max_batch, limits.max_body)
    else:
        files = [await _joined(body)]
    size = sum(map(len, files))
    if kind == images.NPY:
        return await service.decode(functools.partial(images.unpacked, files[0], limits.max_pixels), size)
    work = functools.partial(images.measured, files, limits.max_pixels, service.size)
    account.charge(await service.decode(work, size + _SLOW))  # small files may hold large images
    return await service.decode(functools.partial(images.decoded, files), size + _SLOW)


async def read_body(request: Request, most: int, account: ByteAccount) -> bytes:
    """A body of at most `most` bytes, charged to `account`."""
    return await _joined(_charged(_bounded(request, most), account))


async def read_small(request: Request, most: int, patience: float) -> bytes:
    """A body that has no reason to be large; a TimeoutError when it takes longer than `patience` seconds."""
    async with asyncio.timeout(patience):
        return await _joined(_bounded(request, most))


async def _joined(body: AsyncGenerator[bytes, None]) -> bytes:
    """All of it, without a second copy of it on the way."""
    content = io.BytesIO()
    async for chunk in body:
        content.write(chunk)
    return content.getvalue()  # shares the memory


async def _charged(body: AsyncGenerator[bytes, None], account: ByteAccount) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(body):
        async for chunk in body:
            account.charge(len(chunk))
            yield chunk


async def _bounded(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body, in pieces, as long as it is not too large."""
    promised = request.headers.get("content-length", "")
    too_large = promised.isdecimal() and int(promised) > most
    seen = 0
    try:
        async with contextlib.aclosing(request.stream()) as stream:
            if not too_large:
                async for chunk in stream:
                    seen += len(chunk)
                    too_large = seen > most
                    if too_large:
                        break
                    yield chunk
            if too_large:
                if "expect" not in request.headers:
                    await _swallow(stream, max(most, _SWALLOWED))
                raise RefusedError("too_large", f"a request has at most {most} bytes, got {promised or 'more'}")
    except ClientDisconnect:
        raise RefusedError("malformed", "the connection ended before the request did") from None


async def _swallow(stream: AsyncGenerator[bytes, None], most: int) -> None:
    """Let a client that sends too much finish, within reason: most read no answer before they have."""
    seen = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_SWALLOW):
            async for chunk in stream:
                seen += len(chunk)
                if seen > most:
                    return


async def _files(request: Request, body: AsyncGenerator[bytes, None], most: int, size: int) -> list[bytes]:
    """The files called "images" of a form of at most `size` bytes."""
    parser = MultiPartParser(request.headers, body, max_files=most + 1, max_fields=0)
    parser.spool_max_size = size + 1  # in memory, which is bounded; never to a disk that may be full
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise RefusedError("too_large", f"a request holds at most {most} images: send several") from None
        raise RefusedError("malformed", f"the form cannot be read: {error.message}") from None
    except (ValueError, KeyError, AssertionError, UnicodeError) as error:
        raise RefusedError("malformed", "the form cannot be read") from error
    try:
        files = [(key, value) for key, value in form.multi_items() if isinstance(value, UploadFile)]
        strangers = [key for key, _ in files if key != "images"]
        if strangers or not files:
            raise RefusedError("unfit", f'a form holds files called "images", got {strangers[:3] or "none"}')
        if len(files) > most:
            raise RefusedError("too_large", f"a request holds at most {most} images, got {len(files)}: send several")
        return [await _read_out(value) for _, value in files]
    finally:
        await form.close()


async def _read_out(file: UploadFile) -> bytes:
    """What is in it; it is closed at once, so that nothing is there twice."""
    content = await file.read()
    await file.close()
    return content
