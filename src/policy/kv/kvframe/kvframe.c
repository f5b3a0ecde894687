/* SPDX-License-Identifier: Apache-2.0 */
/* kvframe: payloads. */
#include "base/mix/mix.h"
#include "policy/kv/kvframe/kvframe_priv.h"

#define HOLD_BYTES 9
#define PRIORITIES 8

/* ---- numbers ---- */

uint64_t kvframe_rd_le(struct kvframe_rd *r, size_t bytes)
{
	uint64_t v = 0;
	if (r->bad || r->n < bytes) {
		r->bad = true;
		return 0;
	}
	for (size_t i = bytes; i > 0; i--)
		v = v << 8 | (unsigned char)r->p[i - 1];
	r->p += bytes;
	r->n -= bytes;
	return v;
}

static struct cgn_str kvframe_rd_bytes(struct kvframe_rd *r, size_t n)
{
	if (r->bad || r->n < n) {
		r->bad = true;
		return (struct cgn_str){NULL, 0};
	}
	struct cgn_str s = {r->p, n};
	r->p += n;
	r->n -= n;
	return s;
}

static void put_le(struct cgn_buf *out, uint64_t v, size_t bytes)
{
	char le[8];
	for (size_t i = 0; i < bytes; i++)
		le[i] = (char)(unsigned char)(v >> (8 * i) & 0xff);
	cgn_buf_add(out, le, bytes);
}

static void put_text(struct cgn_buf *out, struct cgn_str s)
{
	struct cgn_str cut = {s.p, s.n < KVFRAME_MAX_NAME ? s.n : KVFRAME_MAX_NAME};
	put_le(out, cut.n, 2);
	cgn_buf_str(out, cut);
}

static struct cgn_str rd_text(struct kvframe_rd *r)
{
	size_t n = kvframe_rd_u16(r);
	if (n > KVFRAME_MAX_NAME)
		r->bad = true;
	return kvframe_rd_bytes(r, n);
}

/* Write the head; frame_end fills in the payload's length. */
static size_t frame_begin(struct cgn_buf *out, enum kvframe_type type)
{
	put_le(out, type, 4);
	put_le(out, 0, 4);
	return out->n;
}

static void frame_end(struct cgn_buf *out, size_t at)
{
	if (out->bad)
		return;
	size_t n = out->n - at;
	CGN_MUST(n <= KVFRAME_MAX);
	for (size_t i = 0; i < 4; i++)
		out->p[at - 4 + i] = (char)(unsigned char)(n >> (8 * i) & 0xff);
}

static CGN_RC payload_check(const struct kvframe_rd *r, enum kvframe_type type, struct cgn_err *err)
{
	return !r->bad ? CGN_OK
		       : CGN_FAIL(err, INVALID, "kv frame: %s is cut short, or a text in it is too long",
				 kvframe_type_text(type));
}

const char *kvframe_type_text(enum kvframe_type t)
{
	static const char *const names[] = {[KVFRAME_FETCH] = "FETCH",
		[KVFRAME_ANSWER] = "ANSWER",
		[KVFRAME_SUBSCRIBE] = "SUBSCRIBE",
		[KVFRAME_HELLO] = "HELLO",
		[KVFRAME_HOLDS] = "HOLDS"};
	return t >= KVFRAME_FETCH && t <= KVFRAME_HOLDS && names[t] != NULL ? names[t] : "unknown";
}

const char *kvframe_status_text(enum kvframe_status s)
{
	static const char *const names[] = {[KVFRAME_OK] = "ok",
		[KVFRAME_NOT_FOUND] = "not found",
		[KVFRAME_BUSY] = "busy",
		[KVFRAME_FAILED] = "failed",
		[KVFRAME_REFUSED] = "refused"};
	return s < KVFRAME_STATUSES ? names[s] : "unknown";
}

/* ---- keys ---- */

uint64_t kvframe_short(const struct block_key *k)
{
	return digest_short(&k->digest) ^ mix_golden(k->segment);
}

static void put_key(struct cgn_buf *out, const struct block_key *k)
{
	cgn_buf_add(out, k->digest.b, sizeof k->digest.b);
	put_le(out, k->segment, 4);
}

static void rd_key(struct kvframe_rd *r, struct block_key *k)
{
	struct cgn_str bytes = kvframe_rd_bytes(r, sizeof k->digest.b);
	*k = (struct block_key){.segment = 0};
	if (bytes.n > 0)
		memcpy(k->digest.b, bytes.p, bytes.n);
	k->segment = kvframe_rd_u32(r);
}

/* ---- FETCH and ANSWER ---- */

void kvframe_put_fetch(struct cgn_buf *out, const struct kvframe_fetch *f)
{
	size_t at = frame_begin(out, KVFRAME_FETCH);
	put_key(out, &f->key);
	put_le(out, f->offset, 8);
	put_le(out, f->length, 8);
	put_le(out, f->budget_ms, 4);
	put_le(out, f->priority, 4);
	frame_end(out, at);
}

CGN_RC kvframe_read_fetch(struct cgn_str payload, struct kvframe_fetch *out, struct cgn_err *err)
{
	struct kvframe_rd r = {payload.p, payload.n, false};
	rd_key(&r, &out->key);
	out->offset = kvframe_rd_u64(&r);
	out->length = kvframe_rd_u64(&r);
	out->budget_ms = kvframe_rd_u32(&r);
	uint32_t priority = kvframe_rd_u32(&r);
	CGN_TRY(payload_check(&r, KVFRAME_FETCH, err));
	if (priority >= PRIORITIES)
		return CGN_FAIL(err, INVALID, "kv frame: FETCH with priority %u, the last one is %d",
			priority, PRIORITIES - 1);
	out->priority = (uint8_t)priority;
	return CGN_OK;
}

void kvframe_put_answer(struct cgn_buf *out, const struct kvframe_answer *a)
{
	size_t at = frame_begin(out, KVFRAME_ANSWER);
	put_le(out, a->status, 4);
	put_le(out, a->wait_ms, 4);
	put_le(out, a->size, 8);
	put_le(out, a->checksum, 8);
	put_le(out, a->offset, 8);
	put_le(out, a->length, 8);
	put_le(out, a->tokens, 4);
	put_le(out, a->created_unix_ms, 8);
	put_le(out, a->expires_unix_ms, 8);
	put_text(out, a->model);
	put_text(out, a->name);
	if (a->tenant.n > 0)
		put_text(out, a->tenant);
	frame_end(out, at);
}

CGN_RC kvframe_read_answer(struct cgn_str payload, struct kvframe_answer *out, struct cgn_err *err)
{
	struct kvframe_rd r = {payload.p, payload.n, false};
	uint32_t status = kvframe_rd_u32(&r);
	out->wait_ms = kvframe_rd_u32(&r);
	out->size = kvframe_rd_u64(&r);
	out->checksum = kvframe_rd_u64(&r);
	out->offset = kvframe_rd_u64(&r);
	out->length = kvframe_rd_u64(&r);
	out->tokens = kvframe_rd_u32(&r);
	out->created_unix_ms = kvframe_rd_u64(&r);
	out->expires_unix_ms = kvframe_rd_u64(&r);
	out->model = rd_text(&r);
	out->name = rd_text(&r);
	out->tenant = !r.bad && r.n == 0 ? (struct cgn_str){NULL, 0} : rd_text(&r);
	CGN_TRY(payload_check(&r, KVFRAME_ANSWER, err));
	if (status >= KVFRAME_STATUSES)
		return CGN_FAIL(err, INVALID, "kv frame: ANSWER with status %u, which is not known", status);
	if (out->offset > out->size || out->length > out->size - out->offset)
		return CGN_FAIL(err, INVALID,
			"kv frame: ANSWER of bytes that a value of %llu bytes does not have",
			(unsigned long long)out->size);
	out->status = (enum kvframe_status)status;
	return CGN_OK;
}

/* ---- SUBSCRIBE, HELLO and HOLDS ---- */

void kvframe_put_who(struct cgn_buf *out, enum kvframe_type type, const struct kvframe_who *w)
{
	size_t at = frame_begin(out, type);
	put_le(out, w->instance, 8);
	put_text(out, w->node);
	put_text(out, w->rack);
	put_text(out, w->region);
	frame_end(out, at);
}

/* Accept only text that may appear in logs and JSON. */
static bool is_text(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.p[i] < ' ' || s.p[i] == 0x7f)
			return false;
	return cgn_utf8_valid(s.p, s.n);
}

CGN_RC kvframe_read_who(struct cgn_str payload, struct kvframe_who *out, struct cgn_err *err)
{
	struct kvframe_rd r = {payload.p, payload.n, false};
	out->instance = kvframe_rd_u64(&r);
	out->node = rd_text(&r);
	out->rack = rd_text(&r);
	out->region = rd_text(&r);
	CGN_TRY(payload_check(&r, KVFRAME_HELLO, err));
	if (!is_text(out->node) || !is_text(out->rack) || !is_text(out->region))
		return CGN_FAIL(err, INVALID, "kv frame: HELLO with a name that is not text");
	return CGN_OK;
}

struct kvframe_hold kvframe_hold_at(const struct kvframe_holds *h, size_t i)
{
	struct kvframe_rd r = {h->packed + i * HOLD_BYTES, HOLD_BYTES, false};
	struct kvframe_hold hold;
	hold.block = kvframe_rd_u64(&r);
	hold.tiers = kvframe_rd_u8(&r) & BLOCK_TIER_MASK;
	return hold;
}

void kvframe_put_holds(struct cgn_buf *out, const struct kvframe_holds *h, const struct kvframe_hold *list,
	size_t n)
{
	CGN_MUST(n <= KVFRAME_MAX_HOLDS);
	size_t at = frame_begin(out, KVFRAME_HOLDS);
	put_le(out, h->seq, 8);
	put_le(out, (h->reset ? 1U : 0U) | (h->synced ? 2U : 0U), 4);
	put_le(out, h->blocks, 8);
	put_le(out, h->bytes, 8);
	put_le(out, n, 4);
	for (size_t i = 0; i < n; i++) {
		put_le(out, list[i].block, 8);
		put_le(out, list[i].tiers, 1);
	}
	frame_end(out, at);
}

CGN_RC kvframe_read_holds(struct cgn_str payload, struct kvframe_holds *out, struct cgn_err *err)
{
	struct kvframe_rd r = {payload.p, payload.n, false};
	*out = (struct kvframe_holds){.seq = kvframe_rd_u64(&r)};
	uint32_t flags = kvframe_rd_u32(&r);
	out->blocks = kvframe_rd_u64(&r);
	out->bytes = kvframe_rd_u64(&r);
	out->n = kvframe_rd_u32(&r);
	CGN_TRY(payload_check(&r, KVFRAME_HOLDS, err));
	if (out->n > KVFRAME_MAX_HOLDS || out->n * HOLD_BYTES > r.n)
		return CGN_FAIL(err, INVALID,
			"kv frame: HOLDS of %zu blocks: at most %d are read, and %zu fit in it", out->n,
			KVFRAME_MAX_HOLDS, r.n / HOLD_BYTES);
	out->reset = (flags & 1) != 0;
	out->synced = (flags & 2) != 0;
	out->packed = r.p;
	return CGN_OK;
}
