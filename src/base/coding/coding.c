/* SPDX-License-Identifier: Apache-2.0 */
#define ZLIB_CONST
#include "base/coding/coding.h"

#include <limits.h>
#include <stdlib.h>

#include <zlib.h>
#include <zstd.h>

#define GZIP_WINDOW     (MAX_WBITS + 16) /* zlib's way to ask for gzip. */
#define ZSTD_WINDOW_LOG 23

struct coding {
	enum coding_kind kind;
	bool ready; /* |z| is initialised */
	bool whole; /* the bytes that were taken end with a member or frame */
	z_stream z;
	ZSTD_DCtx *zstd;
};

/* ---- names ---- */

static enum coding_kind coding_named(struct cgn_str name)
{
	static const struct {
		const char *name;
		enum coding_kind kind;
	} rows[] = {{"", CODING_IDENTITY}, {"identity", CODING_IDENTITY}, {"gzip", CODING_GZIP},
		{"x-gzip", CODING_GZIP}, {"deflate", CODING_DEFLATE}, {"zstd", CODING_ZSTD}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(rows[i].name)))
			return rows[i].kind;
	return CODING_OTHER;
}

enum coding_kind coding_of(enum coding_kind before, struct cgn_str list)
{
	enum coding_kind all = before;
	while (list.p != NULL) {
		enum coding_kind one = coding_named(cgn_str_trim(cgn_str_split(&list, ',')));
		if (one != CODING_IDENTITY)
			all = all == CODING_IDENTITY ? one : CODING_OTHER;
	}
	return all;
}

/* ---- zlib ---- */

static CGN_RC coding_no_memory(struct cgn_err *err)
{
	return CGN_FAIL(err, NO_MEMORY, "no memory to decode the body");
}

static const char *coding_text(const struct coding *c)
{
	return c->kind == CODING_GZIP ? "gzip" : c->kind == CODING_DEFLATE ? "deflate" : "zstd";
}

static CGN_RC coding_damaged(const struct coding *c, const char *why, struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "the body is not %s, as its Content-Encoding says, or is damaged: %s",
		coding_text(c), why);
}

/* Some clients send "deflate" without the head of zlib that RFC 9110 asks for. |first|: the first byte. */
static int deflate_window(uint8_t first)
{
	return (first & 0x0f) == Z_DEFLATED && first >> 4 <= 7 ? MAX_WBITS : -MAX_WBITS;
}

static CGN_RC zlib_begin(struct coding *c, struct cgn_str in, struct cgn_err *err)
{
	int window = c->kind == CODING_GZIP ? GZIP_WINDOW : deflate_window((uint8_t)in.p[0]);
	c->ready = inflateInit2(&c->z, window) == Z_OK;
	return c->ready ? CGN_OK : coding_no_memory(err);
}

/* A further member of gzip begins behind the end of one. */
static CGN_RC zlib_next(struct coding *c, struct cgn_err *err)
{
	if (c->kind != CODING_GZIP)
		return coding_damaged(c, "bytes follow its end", err);
	c->whole = false;
	return inflateReset(&c->z) == Z_OK ? CGN_OK : coding_no_memory(err);
}

static CGN_RC zlib_step(struct coding *c, struct cgn_err *err)
{
	int rc = inflate(&c->z, Z_NO_FLUSH);
	if (rc == Z_MEM_ERROR)
		return coding_no_memory(err);
	if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
		return coding_damaged(c, c->z.msg != NULL ? c->z.msg : "a dictionary is asked for", err);
	c->whole = rc == Z_STREAM_END;
	return CGN_OK;
}

/* Decode as many bytes as fit into an unsigned int on both sides. */
static CGN_RC zlib_read(struct coding *c, struct cgn_str *in, char *to, size_t cap, size_t *n,
	struct cgn_err *err)
{
	if (in->n > 0 && !c->ready)
		CGN_TRY(zlib_begin(c, *in, err));
	if (!c->ready || (c->whole && in->n == 0))
		return CGN_OK;
	if (c->whole)
		CGN_TRY(zlib_next(c, err));
	unsigned take = in->n < UINT_MAX ? (unsigned)in->n : UINT_MAX;
	unsigned room = cap < UINT_MAX ? (unsigned)cap : UINT_MAX;
	c->z.next_in = (const Bytef *)in->p;
	c->z.avail_in = take;
	c->z.next_out = (Bytef *)to;
	c->z.avail_out = room;
	CGN_TRY(zlib_step(c, err));
	size_t taken = take - c->z.avail_in;
	*in = (struct cgn_str){in->p + taken, in->n - taken};
	*n = room - c->z.avail_out;
	return CGN_OK;
}

/* ---- zstd ---- */

static CGN_RC zstd_read(struct coding *c, struct cgn_str *in, char *to, size_t cap, size_t *n,
	struct cgn_err *err)
{
	ZSTD_inBuffer from = {in->p != NULL ? in->p : "", in->n, 0};
	ZSTD_outBuffer out = {to, cap, 0};
	if (c->whole && in->n == 0)
		return CGN_OK;
	size_t rc = ZSTD_decompressStream(c->zstd, &out, &from);
	if (ZSTD_isError(rc))
		return coding_damaged(c, ZSTD_getErrorName(rc), err);
	c->whole = rc == 0;
	*in = (struct cgn_str){in->p + from.pos, in->n - from.pos};
	*n = out.pos;
	return CGN_OK;
}

static bool zstd_open(struct coding *c)
{
	c->zstd = ZSTD_createDCtx();
	return c->zstd != NULL &&
		!ZSTD_isError(ZSTD_DCtx_setParameter(c->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG));
}

/* ---- both ---- */

CGN_RC coding_open(enum coding_kind kind, struct coding **out, struct cgn_err *err)
{
	CGN_MUST(kind != CODING_IDENTITY && kind != CODING_OTHER);
	struct coding *c = calloc(1, sizeof *c);
	if (c == NULL)
		return coding_no_memory(err);
	c->kind = kind;
	if (kind == CODING_ZSTD && !zstd_open(c)) {
		coding_close(&c);
		return coding_no_memory(err);
	}
	*out = c;
	return CGN_OK;
}

void coding_close(struct coding **take)
{
	struct coding *c = CGN_TAKE(take);
	if (c == NULL)
		return;
	if (c->ready)
		(void)inflateEnd(&c->z);
	(void)ZSTD_freeDCtx(c->zstd);
	free(c);
}

CGN_RC coding_read(struct coding *c, struct cgn_str *in, char *to, size_t cap, size_t *n, struct cgn_err *err)
{
	CGN_MUST(cap > 0);
	*n = 0;
	for (;;) {
		size_t before = in->n, got = 0;
		CGN_TRY((
			c->kind == CODING_ZSTD ? zstd_read : zlib_read)(c, in, to + *n, cap - *n, &got, err));
		*n += got;
		if (*n == cap)
			return CGN_OK;
		if (got == 0 && in->n == before)
			return in->n == 0 ? CGN_OK : coding_damaged(c, "it cannot be read on", err);
	}
}

CGN_RC coding_finish(const struct coding *c, struct cgn_err *err)
{
	return c->whole ? CGN_OK : coding_damaged(c, "it ends too early", err);
}
