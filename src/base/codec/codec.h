/* SPDX-License-Identifier: Apache-2.0 */
/* codec: bytes as text. Writers append to a buffer; readers are strict. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"

void base64_put(struct cgn_buf *out, struct cgn_str bytes);    /* RFC 4648 section 4, padded */
void base64url_put(struct cgn_buf *out, struct cgn_str bytes); /* section 5, not padded */
void hex_put(struct cgn_buf *out, struct cgn_str bytes);       /* lower case */
/* Append the bytes that |text| stands for: base64 in either alphabet, padded or not, and hexadecimal digits of
 * either case. False on a foreign character or an impossible length, with nothing appended, and when |out| is
 * full (then out->bad is set). */
bool base64_get(struct cgn_buf *out, struct cgn_str text);
bool hex_get(struct cgn_buf *out, struct cgn_str text);
/* Replace each "%2F"-like escape of a path by its character; other bytes are copied. |to| has room for text.n
 * bytes. Returns how many were written. */
size_t percent_get(char *to, struct cgn_str text);
/* Append |text| as a part of a URL: all but letters, digits and "-._~" become "%2F"-like escapes (RFC 3986, 2.3). */
void percent_put(struct cgn_buf *out, struct cgn_str text);
/* The value of a hexadecimal digit of either case; -1 for another character. */
int hex_digit(char c);
