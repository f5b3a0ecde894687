/* SPDX-License-Identifier: Apache-2.0 */
/* code: encodes decisions and ends as bytes. A mask tells which of a candidate's numbers are not 0; only
 * these are stored. */
#include "policy/route/explain/explain_priv.h"

/* Only the program that wrote an entry reads it: texts that live as long as the program (policies,
 * outcomes, reasons) are stored as pointers, and numbers in its own byte order. */
struct fixed_decision {
	const char *policy;
	uint64_t chain;
	uint32_t took_ns, blocks, common, block_tokens, prompt_tokens, n_all;
	float margin;
	uint16_t attempt;
	uint8_t verdict, unit, n, n_shadows, n_peers, has_split;
};

struct fixed_end {
	const char *outcome;
	uint32_t status, tries, cached_predicted, cached, prompt_tokens, answer_tokens, ttft_us, first_us,
		total_us, turn, phase_us[EXPLAIN_PHASES];
	struct explain_quoted quoted[QUOTE_FIGURES];
	uint8_t has_cached, has_prompt, direct, stream;
};

struct fixed_split {
	const char *shape, *why;
	float whole_ms, pair_ms, continues_ms, transfer_ms;
	uint32_t moved_tokens;
};

struct fixed_shadow {
	const char *policy;
	float believed_ms;
	uint32_t held;
	uint8_t agrees;
};

struct fixed_peer {
	const char *by;
	float ttft_ms;
	uint32_t held;
	float price, joules;
	uint8_t left;
};

_Static_assert(EXPLAIN_FIELDS <= 24, "the mask shares its word with the reason");
_Static_assert(sizeof(struct explain_head) + sizeof(struct fixed_decision) + 2 * (1 + EXPLAIN_TEXT) +
			EXPLAIN_CANDS * (1 + EXPLAIN_TEXT + 4 + 4 * (EXPLAIN_FIELDS + 1)) +
			EXPLAIN_SHADOWS * (1 + EXPLAIN_TEXT + sizeof(struct fixed_shadow)) +
			EXPLAIN_PEERS * (1 + EXPLAIN_TEXT + sizeof(struct fixed_peer)) +
			sizeof(struct fixed_split) + 4 * (1 + EXPLAIN_TEXT) + 8 <=
		EXPLAIN_ENTRY,
	"the longest decision fits");

static uint8_t *bytes_put(uint8_t *to, const void *p, size_t n)
{
	memcpy(to, p, n);
	return to + n;
}

static uint8_t *put_text(uint8_t *to, struct cgn_str s)
{
	size_t n = s.n <= EXPLAIN_TEXT ? s.n : EXPLAIN_TEXT;
	*to++ = (uint8_t)n;
	if (n > 0)
		memcpy(to, s.p, n);
	return to + n;
}

static const uint8_t *bytes_get(const uint8_t *from, void *p, size_t n)
{
	memcpy(p, from, n);
	return from + n;
}

static const uint8_t *get_text(const uint8_t *from, struct cgn_str *out)
{
	*out = (struct cgn_str){(const char *)from + 1, *from};
	return from + 1 + *from;
}

static const uint8_t *body_of(const struct explain_head *h)
{
	return (const uint8_t *)(h + 1);
}

struct cgn_str explain_id_of(const struct explain_head *h)
{
	struct cgn_str id;
	(void)get_text(body_of(h), &id);
	return id;
}

/* Write each number, and let the next overwrite it when it was 0, which avoids a mispredicted branch. */
static uint8_t *put_cand(uint8_t *to, const struct explain_cand *c)
{
	to = put_text(to, c->node);
	uint8_t *mask_at = to;
	uint32_t mask = (uint32_t)c->why << 24;
	to += sizeof mask;
	for (size_t i = 0; i < EXPLAIN_FIELDS; i++) {
		uint32_t bits = c->v[i].u;
		memcpy(to, &bits, sizeof bits);
		mask |= (uint32_t)(bits != 0) << i;
		to += bits != 0 ? sizeof bits : 0;
	}
	memcpy(mask_at, &mask, sizeof mask);
	return to;
}

static const uint8_t *get_cand(const uint8_t *from, struct explain_cand *c)
{
	uint32_t mask;
	from = get_text(from, &c->node);
	from = bytes_get(from, &mask, sizeof mask);
	c->why = (enum explain_why)(mask >> 24);
	for (size_t i = 0; i < EXPLAIN_FIELDS; i++) {
		c->v[i].u = 0;
		if (mask & 1U << i)
			from = bytes_get(from, &c->v[i].u, sizeof c->v[i].u);
	}
	return from;
}

static uint8_t *put_peer(uint8_t *to, const struct explain_peer *p)
{
	const struct fixed_peer f = {.by = p->by,
		.ttft_ms = p->ttft_ms,
		.held = p->held,
		.price = p->price,
		.joules = p->joules,
		.left = p->left};
	return put_text(bytes_put(to, &f, sizeof f), p->peer);
}

static const uint8_t *get_peer(const uint8_t *from, struct explain_peer *out)
{
	struct fixed_peer f;
	from = bytes_get(from, &f, sizeof f);
	*out = (struct explain_peer){.by = f.by,
		.left = f.left,
		.ttft_ms = f.ttft_ms,
		.held = f.held,
		.price = f.price,
		.joules = f.joules};
	return get_text(from, &out->peer);
}

static uint8_t *put_split(uint8_t *to, const struct explain_split *s)
{
	const struct fixed_split f = {.shape = s->shape,
		.why = s->why,
		.whole_ms = s->whole_ms,
		.pair_ms = s->pair_ms,
		.continues_ms = s->continues_ms,
		.transfer_ms = s->transfer_ms,
		.moved_tokens = s->moved_tokens};
	to = bytes_put(to, &f, sizeof f);
	to = put_text(put_text(to, s->whole), s->prefill);
	return put_text(put_text(to, s->decode), s->continues);
}

static void get_split(const uint8_t *from, struct explain_split *out)
{
	struct fixed_split f;
	from = bytes_get(from, &f, sizeof f);
	*out = (struct explain_split){.shape = f.shape,
		.why = f.why,
		.whole_ms = f.whole_ms,
		.pair_ms = f.pair_ms,
		.continues_ms = f.continues_ms,
		.transfer_ms = f.transfer_ms,
		.moved_tokens = f.moved_tokens};
	from = get_text(get_text(from, &out->whole), &out->prefill);
	(void)get_text(get_text(from, &out->decode), &out->continues);
}

size_t explain_put_decision(uint8_t *to, const struct explain_decision *d)
{
	const uint8_t *begin = to;
	struct fixed_decision f = {.policy = d->policy,
		.chain = d->chain,
		.took_ns = d->took_ns,
		.blocks = d->blocks,
		.common = d->common,
		.block_tokens = d->block_tokens,
		.prompt_tokens = d->prompt_tokens,
		.n_all = d->n_all,
		.margin = d->margin,
		.attempt = (uint16_t)d->attempt,
		.verdict = (uint8_t)d->verdict,
		.unit = (uint8_t)d->unit,
		.n = (uint8_t)d->n,
		.n_shadows = (uint8_t)d->n_shadows,
		.n_peers = (uint8_t)d->n_peers,
		.has_split = d->split.shape != NULL};
	CGN_MUST(d->n <= EXPLAIN_CANDS && d->n_shadows <= EXPLAIN_SHADOWS && d->n_peers <= EXPLAIN_PEERS);
	to = put_text(to, d->id);
	to = bytes_put(to, &f, sizeof f);
	to = put_text(to, d->model);
	for (size_t i = 0; i < d->n; i++)
		to = put_cand(to, &d->cands[i]);
	for (size_t i = 0; i < d->n_shadows; i++) {
		const struct explain_shadow *s = &d->shadows[i];
		struct fixed_shadow fs = {.policy = s->policy,
			.believed_ms = s->believed_ms,
			.held = s->held,
			.agrees = s->agrees};
		to = bytes_put(to, &fs, sizeof fs);
		to = put_text(to, s->node);
	}
	for (size_t i = 0; i < d->n_peers; i++)
		to = put_peer(to, &d->peers[i]);
	if (f.has_split)
		to = put_split(to, &d->split);
	return (size_t)(to - begin);
}

void explain_get_decision(const struct explain_head *h, struct explain_decision *out)
{
	struct fixed_decision f;
	const uint8_t *from = get_text(body_of(h), &out->id);
	from = bytes_get(from, &f, sizeof f);
	from = get_text(from, &out->model);
	out->request = h->request;
	out->at_ms = h->at_ms;
	out->policy = f.policy;
	out->chain = f.chain;
	out->took_ns = f.took_ns;
	out->blocks = f.blocks;
	out->common = f.common;
	out->block_tokens = f.block_tokens;
	out->prompt_tokens = f.prompt_tokens;
	out->n_all = f.n_all;
	out->margin = f.margin;
	out->attempt = f.attempt;
	out->verdict = (enum route_verdict)f.verdict;
	out->unit = (enum explain_unit)f.unit;
	out->n = f.n;
	out->n_shadows = f.n_shadows;
	out->n_peers = f.n_peers;
	for (size_t i = 0; i < out->n; i++)
		from = get_cand(from, &out->cands[i]);
	for (size_t i = 0; i < out->n_shadows; i++) {
		struct fixed_shadow fs;
		from = bytes_get(from, &fs, sizeof fs);
		out->shadows[i] = (struct explain_shadow){.policy = fs.policy,
			.believed_ms = fs.believed_ms,
			.held = fs.held,
			.agrees = fs.agrees};
		from = get_text(from, &out->shadows[i].node);
	}
	for (size_t i = 0; i < out->n_peers; i++)
		from = get_peer(from, &out->peers[i]);
	out->split.shape = NULL;
	if (f.has_split)
		get_split(from, &out->split);
}

size_t explain_put_end(uint8_t *to, const struct explain_end *e)
{
	const uint8_t *begin = to;
	struct fixed_end f = {.outcome = e->outcome,
		.status = e->status,
		.tries = e->tries,
		.cached_predicted = e->cached_predicted,
		.cached = e->cached,
		.prompt_tokens = e->prompt_tokens,
		.answer_tokens = e->answer_tokens,
		.ttft_us = e->ttft_us,
		.first_us = e->first_us,
		.total_us = e->total_us,
		.turn = e->turn,
		.has_cached = e->has_cached,
		.has_prompt = e->has_prompt,
		.direct = e->direct,
		.stream = e->stream};
	memcpy(f.phase_us, e->phase_us, sizeof f.phase_us);
	memcpy(f.quoted, e->quoted, sizeof f.quoted);
	to = put_text(to, e->id);
	to = bytes_put(to, &f, sizeof f);
	to = put_text(to, e->model);
	to = put_text(put_text(to, e->node), e->session);
	return (size_t)(to - begin);
}

void explain_get_end(const struct explain_head *h, struct explain_end *out)
{
	struct fixed_end f;
	*out = (struct explain_end){.request = h->request, .at_ms = h->at_ms};
	const uint8_t *from = get_text(body_of(h), &out->id);
	from = bytes_get(from, &f, sizeof f);
	from = get_text(from, &out->model);
	from = get_text(from, &out->node);
	(void)get_text(from, &out->session);
	out->outcome = f.outcome;
	out->status = f.status;
	out->tries = f.tries;
	out->has_cached = f.has_cached;
	out->has_prompt = f.has_prompt;
	out->direct = f.direct;
	out->cached_predicted = f.cached_predicted;
	out->cached = f.cached;
	out->prompt_tokens = f.prompt_tokens;
	out->answer_tokens = f.answer_tokens;
	out->ttft_us = f.ttft_us;
	out->first_us = f.first_us;
	out->total_us = f.total_us;
	out->turn = f.turn;
	out->stream = f.stream;
	memcpy(out->phase_us, f.phase_us, sizeof f.phase_us);
	memcpy(out->quoted, f.quoted, sizeof f.quoted);
}
