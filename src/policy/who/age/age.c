/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/age/age.h"

#include "base/seal/seal.h"

#define AGE_KIND   "cognitora-age"
#define AGE_FORMAT 1

void age_begin(struct age *a, uint64_t seen_s, cgn_nsec now)
{
	*a = (struct age){.seen_ms = seen_s * 1000, .at = now};
}

uint64_t age_now(struct age *a, uint64_t wall_ms, cgn_nsec now)
{
	uint64_t most = a->seen_ms + cgn_since(now, a->at) / CGN_MSEC * AGE_RATE;
	a->seen_ms = wall_ms < most ? wall_ms : most;
	if (now > a->at)
		a->at += cgn_since(now, a->at) / CGN_MSEC * CGN_MSEC; /* The rest counts the next time. */
	return a->seen_ms / 1000;
}

void age_write(const struct age *a, struct cgn_buf *out)
{
	seal_begin(out, AGE_KIND, AGE_FORMAT);
	cgn_buf_fmt(out, "%llu\n", (unsigned long long)(a->seen_ms / 1000));
	seal_end(out);
}

CGN_RC age_read(struct cgn_str text, uint64_t *seen_s, struct cgn_err *err)
{
	struct cgn_str lines;
	CGN_TRY(seal_open(text, AGE_KIND, AGE_FORMAT, &lines, err));
	if (!cgn_str_u64(cgn_str_split(&lines, '\n'), seen_s) || *seen_s > UINT64_MAX / 1000)
		return CGN_FAIL(err, INVALID, "it has no time");
	return CGN_OK;
}
