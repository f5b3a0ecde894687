/* SPDX-License-Identifier: Apache-2.0 */
/* coding: decode the content codings of HTTP (RFC 9110, 8.4): gzip, deflate and zstd. A decoder writes only into the
 * room that its caller gives, so a small input cannot take much memory. Pure; any thread, one at a time. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"

#define CODING_ACCEPTED "gzip, deflate, zstd" /* Value of an Accept-Encoding field. */
/* Most bytes that a decoder allocates: a window of zstd has at most 8 MiB (RFC 9659). */
#define CODING_MEMORY ((size_t)9 << 20)

enum coding_kind {
	CODING_IDENTITY,
	CODING_GZIP,
	CODING_DEFLATE,
	CODING_ZSTD,
	CODING_OTHER /* Several codings, or one that is not known here. */
};
/* Return the coding that a message with the codings |before| and, applied after them, those of |list| has; |list|
 * is the value of a Content-Encoding field. Names are taken in any case; "x-gzip" is gzip. */
enum coding_kind coding_of(enum coding_kind before, struct cgn_str list);

struct coding;
/* Make a decoder of GZIP, DEFLATE or ZSTD. CGN_NO_MEMORY. */
CGN_RC coding_open(enum coding_kind kind, struct coding **out, struct cgn_err *err);
void coding_close(struct coding **take); /* NULL-safe */
/* Decode bytes of |in|, and cut off those that were taken. Write at most |cap| bytes (not 0) to |to|, and their
 * number to |n|. Fewer than |cap| are written only when all of |in| was taken. Several members of gzip or frames of
 * zstd behind each other are one text. CGN_INVALID: the bytes are not of that coding, are damaged, have other bytes
 * behind their end, or need a larger window than the coding allows. CGN_NO_MEMORY. */
CGN_RC coding_read(struct coding *c, struct cgn_str *in, char *to, size_t cap, size_t *n,
	struct cgn_err *err);
/* Fail with CGN_INVALID unless the input ended where the coded text ends. */
CGN_RC coding_finish(const struct coding *c, struct cgn_err *err);
