"""JPEG compression: encode and decode with libjpeg at a given quality."""

from __future__ import annotations

import cv2
import numpy as np

from tidefast.corruptions.images import Bytes
from tidefast.corruptions.severity import SeverityConstants


def jpeg_compression(image: Bytes, constants: SeverityConstants) -> Bytes:
    """Baseline JPEG with the default 4:2:0 chroma, there and back."""
    options = [cv2.IMWRITE_JPEG_QUALITY, int(constants[0])]
    done, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise RuntimeError(f"OpenCV could not encode an image of shape {image.shape} as JPEG")
    decoded = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), dtype=np.uint8)
    return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), dtype=np.uint8)
