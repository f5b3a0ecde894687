/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "io/wire/http/h2_link_priv.h"

static size_t block_bytes(const struct http_field *f, size_t n)
{
	size_t total = 0;
	for (size_t i = 0; i < n; i++)
		total += f[i].name.n + f[i].value.n;
	return total;
}

static void block_put(struct h2_block *b, char **at, const struct http_field *f)
{
	nghttp2_nv *nv = &b->nv[b->n++];
	*nv = (nghttp2_nv){.namelen = f->name.n, .valuelen = f->value.n};
	nv->name = (uint8_t *)*at;
	for (size_t i = 0; i < f->name.n; i++) {
		char c = f->name.p[i];
		*(*at)++ = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
	}
	nv->value = (uint8_t *)*at;
	if (f->value.n > 0)
		memcpy(*at, f->value.p, f->value.n);
	*at += f->value.n;
}

/* HTTP/2 keeps "te: trailers" of the fields of the connection (RFC 9113, 8.2.2); gRPC servers want it. */
static bool is_te_trailers(const struct http_field *f)
{
	return cgn_str_eq_nocase(f->name, CGN_STR("te")) && cgn_str_is(f->value, "trailers");
}

struct h2_block *h2_block_make(const struct http_field *pseudo, size_t n_pseudo,
	const struct http_field *fields, size_t n)
{
	size_t slots = n_pseudo + n, bytes = block_bytes(pseudo, n_pseudo) + block_bytes(fields, n);
	struct h2_block *b = malloc(sizeof *b + slots * sizeof b->nv[0] + bytes);
	if (b == NULL)
		return NULL;
	b->n = 0;
	char *at = (char *)&b->nv[slots];
	for (size_t i = 0; i < n_pseudo; i++)
		block_put(b, &at, &pseudo[i]);
	for (size_t i = 0; i < n; i++)
		if ((http_field_passes(fields, n, i) || is_te_trailers(&fields[i])) &&
			!cgn_str_eq_nocase(fields[i].name, CGN_STR("host")))
			block_put(b, &at, &fields[i]);
	return b;
}
