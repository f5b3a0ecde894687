/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/audit/audit.h"

#include <string.h>

#include "base/codec/codec.h"
#include "base/json/json.h"

/* The place in the chain that a line names. */
struct audit_place {
	uint64_t seq;
	struct sha256 prev;
};

static struct cgn_str hash_bytes(const struct sha256 *h)
{
	return (struct cgn_str){(const char *)h->b, sizeof h->b};
}

void audit_seal(const struct audit_chain *c, struct cgn_str line, struct cgn_buf *out)
{
	CGN_MUST(line.n > 3 && line.p[line.n - 2] == '}' && line.p[line.n - 1] == '\n');
	cgn_buf_add(out, line.p, line.n - 2);
	cgn_buf_fmt(out, ",\"seq\":%llu,\"prev\":\"", (unsigned long long)c->seq + 1);
	hex_put(out, hash_bytes(&c->head));
	cgn_buf_putz(out, "\"}\n");
}

static bool hash_read(struct cgn_str text, struct sha256 *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf plain = {.limit = sizeof out->b};
	if (text.p == NULL || text.n != 2 * sizeof out->b || !hex_get(&plain, text) ||
		plain.n != sizeof out->b)
		return false;
	memcpy(out->b, plain.p, sizeof out->b);
	return true;
}

static CGN_RC place_read(struct cgn_str line, struct audit_place *out, struct cgn_err *err)
{
	struct json_val object, seq;
	size_t at = 0;
	struct cgn_arena a;
	if (line.n > AUDIT_LINE_MAX)
		return CGN_FAIL(err, INVALID, "the line is longer than %zu bytes", AUDIT_LINE_MAX);
	if (!cgn_ok(json_parse(line, &object, &at, NULL)))
		return CGN_FAIL(err, INVALID, "the line is not JSON (byte %zu)", at);
	cgn_arena_init(&a, 4096);
	bool good = json_get(object, "seq", &seq) && json_u64(seq, &out->seq) && out->seq > 0 &&
		hash_read(json_get_str(object, "prev", &a), &out->prev);
	cgn_arena_fini(&a);
	return good ? CGN_OK
		    : CGN_FAIL(err, INVALID,
			      "the line has no \"seq\" (a number) and \"prev\" (64 hexadecimal digits)");
}

static void chain_move(struct audit_chain *c, struct cgn_str line, uint64_t seq)
{
	c->seq = seq;
	c->head = crypto_sha256(line);
}

CGN_RC audit_begin(struct audit_chain *c, struct cgn_str line, struct cgn_err *err)
{
	struct audit_place p;
	CGN_TRY(place_read(line, &p, err));
	chain_move(c, line, p.seq);
	return CGN_OK;
}

CGN_RC audit_follow(struct audit_chain *c, struct cgn_str line, struct cgn_err *err)
{
	struct audit_place p;
	CGN_TRY(place_read(line, &p, err));
	if (p.seq != c->seq + 1)
		return CGN_FAIL(err, INVALID,
			"seq is %llu and should be %llu: lines were removed, inserted or moved",
			(unsigned long long)p.seq, (unsigned long long)c->seq + 1);
	if (!crypto_equal(p.prev.b, c->head.b, sizeof p.prev.b))
		return CGN_FAIL(err, INVALID,
			"prev is not the SHA-256 of the line before (seq %llu): one of the two was changed",
			(unsigned long long)c->seq);
	chain_move(c, line, p.seq);
	return CGN_OK;
}
