/* SPDX-License-Identifier: Apache-2.0 */
/* stream: assembles frames from bytes that arrive in pieces of any length. */
#include "policy/kv/kvframe/kvframe_priv.h"

void kvframe_in_init(struct kvframe_in *in)
{
	*in = (struct kvframe_in){.buf = {.limit = KVFRAME_HEAD + KVFRAME_MAX}};
}

void kvframe_in_fini(struct kvframe_in *in)
{
	cgn_buf_fini(&in->buf);
}

/* Fill the buffer up to |want| bytes in all. */
static bool frame_fill(struct kvframe_in *in, struct cgn_str *rest, size_t want)
{
	size_t missing = want - in->buf.n, n = rest->n < missing ? rest->n : missing;
	cgn_buf_add(&in->buf, rest->p, n);
	rest->p = n > 0 ? rest->p + n : rest->p;
	rest->n -= n;
	return in->buf.n == want;
}

static CGN_RC head_read(const struct kvframe_in *in, size_t *payload, struct cgn_err *err)
{
	struct kvframe_rd r = {in->buf.p, in->buf.n, false};
	unsigned type = kvframe_rd_u8(&r), reserved = kvframe_rd_u8(&r);
	reserved |= kvframe_rd_u16(&r);
	uint32_t length = kvframe_rd_u32(&r);
	if (type < KVFRAME_FETCH || type > KVFRAME_HOLDS ||
		(type > KVFRAME_ANSWER && type < KVFRAME_SUBSCRIBE) || reserved != 0)
		return CGN_FAIL(err, INVALID, "kv frame: type %u with flags %u is not known", type, reserved);
	if (length > KVFRAME_MAX)
		return CGN_FAIL(err, INVALID, "kv frame: %s of %u bytes, at most %zu are read",
			kvframe_type_text((enum kvframe_type)type), length, KVFRAME_MAX);
	*payload = length;
	return CGN_OK;
}

static CGN_RC frame_step(struct kvframe_in *in, struct cgn_str *rest, struct kvframe *out, bool *got,
	struct cgn_err *err)
{
	size_t payload = 0;
	if (in->buf.n < KVFRAME_HEAD && !frame_fill(in, rest, KVFRAME_HEAD))
		return CGN_OK;
	CGN_TRY(head_read(in, &payload, err));
	if (!frame_fill(in, rest, KVFRAME_HEAD + payload))
		return CGN_OK;
	*out = (struct kvframe){(enum kvframe_type)(unsigned char)in->buf.p[0],
		{in->buf.p + KVFRAME_HEAD, payload}};
	in->whole = *got = true;
	return CGN_OK;
}

CGN_RC kvframe_next(struct kvframe_in *in, struct cgn_str *rest, struct kvframe *out, bool *got,
	struct cgn_err *err)
{
	*got = false;
	if (in->bad)
		return CGN_FAIL(err, INVALID, "kv frame: the stream was not understood before");
	if (in->whole)
		in->buf.n = 0;
	in->whole = false;
	cgn_rc rc = frame_step(in, rest, out, got, err);
	in->bad = !cgn_ok(rc);
	return rc;
}
