/* SPDX-License-Identifier: Apache-2.0 */
/* write: entries as JSON, and one decision on one line. */
#include <stdlib.h>

#include "base/core/utc.h"
#include "base/json/json.h"
#include "policy/route/explain/explain_priv.h"

static const struct {
	bool real;
	const char *group, *name;
} fields[EXPLAIN_FIELDS] = {
#define KIND_U                       false
#define KIND_F                       true
#define FIELD(id, kind, group, name) {KIND_##kind, group, name},
#include "policy/route/explain/fields.def"
#undef FIELD
};
static const char *const whys[EXPLAIN_WHYS] = {"eligible", "full", "tried", "breaker", "role", "handoff",
	"energy"};
static const char *const phases[EXPLAIN_PHASES] = {
#define PHASE(id, name) name,
#include "policy/route/explain/phases.def"
#undef PHASE
};
static const char *const verdicts[] = {"picked", "nobody", "all_full"};
static const char *const units[EXPLAIN_UNITS] = {"score", "ms", "requests", "turn"};

/* Six digits: a float has no more. */
static void put_real(struct json_out *j, const char *key, double v)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%.6g", v);
	json_key(j, key);
	if (v - v == 0) /* Finite. */
		json_put_raw(j, (struct cgn_str){text, (size_t)n});
	else
		json_put_null(j);
}

static void put_time(struct json_out *j, const char *key, uint64_t ms)
{
	char day[32], text[48];
	(void)cgn_utc_text((int64_t)(ms / 1000), "%Y-%m-%dT%H:%M:%S", day, sizeof day);
	(void)snprintf(text, sizeof text, "%s.%03uZ", day, (unsigned)(ms % 1000));
	json_key_z(j, key, text);
}

/* ---- a decision ---- */

static void put_number(struct json_out *j, const struct explain_cand *c, size_t i)
{
	if (fields[i].real)
		put_real(j, fields[i].name, (double)c->v[i].f);
	else
		json_key_u64(j, fields[i].name, c->v[i].u);
}

static void cand_json(struct json_out *j, const struct explain_cand *c, bool cand_is_picked)
{
	const char *group = NULL;
	json_open(j, '{');
	json_key_str(j, "node", c->node);
	json_key_z(j, "why", cand_is_picked ? "won" : whys[c->why]);
	for (size_t i = 0; i < EXPLAIN_FIELDS; i++) {
		if (fields[i].group != group && group != NULL)
			json_close(j, '}');
		if (fields[i].group != group && fields[i].group != NULL) {
			json_key_open(j, fields[i].group, '{');
		}
		group = fields[i].group;
		put_number(j, c, i);
	}
	if (group != NULL)
		json_close(j, '}');
	json_close(j, '}');
}

static void shadow_json(struct json_out *j, const struct explain_shadow *s)
{
	json_open(j, '{');
	json_key_z(j, "policy", s->policy);
	json_key_str(j, "node", s->node);
	json_key_bool(j, "agrees", s->agrees);
	put_real(j, "regret_ms", (double)s->regret_ms);
	json_key_u64(j, "held_blocks", s->held);
	json_close(j, '}');
}

double explain_ttft_ms(const struct explain_cand *c)
{
	return (double)c->v[EXPLAIN_QUEUE_MS].f + (double)c->v[EXPLAIN_PREFILL].f +
		(double)c->v[EXPLAIN_FETCH].f;
}

static bool cand_is_picked(const struct explain_decision *d, size_t i)
{
	return i == 0 && d->verdict == ROUTE_PICKED;
}

static void decision_head(struct json_out *j, const struct explain_decision *d)
{
	char digest[24];
	(void)snprintf(digest, sizeof digest, "%016llx", (unsigned long long)d->chain);
	json_key_z(j, "leg", d->attempt == 0 ? "prefill" : "answer");
	json_key_u64(j, "try", d->attempt);
	json_key_z(j, "policy", d->policy);
	json_key_z(j, "verdict", verdicts[d->verdict]);
	if (d->verdict == ROUTE_PICKED && d->n > 0)
		json_key_str(j, "node", d->cands[0].node);
	json_key_z(j, "unit", units[d->unit]);
	if (d->verdict == ROUTE_PICKED && d->n > 1 && d->unit != EXPLAIN_TURN &&
		d->cands[1].why == EXPLAIN_ELIGIBLE) {
		json_key_str(j, "over", d->cands[1].node);
		put_real(j, "margin", (double)d->margin);
	}
	json_key_u64(j, "blocks", d->blocks);
	json_key_u64(j, "common_blocks", d->common);
	json_key_u64(j, "block_tokens", d->block_tokens);
	json_key_u64(j, "prompt_tokens", d->prompt_tokens);
	if (d->chain != 0)
		json_key_z(j, "chain", digest);
	put_real(j, "took_us", (double)d->took_ns / 1e3);
}

/* Write the cost of one shape; its nodes in |a| and |b| (NULL: one node). */
static void shape_json(struct json_out *j, const char *key, const char *first, struct cgn_str a,
	const char *second, struct cgn_str b, float ms)
{
	json_key_open(j, key, '{');
	if (a.n > 0)
		json_key_str(j, first, a);
	if (second != NULL && b.n > 0)
		json_key_str(j, second, b);
	put_real(j, "cost_ms", (double)ms);
	json_close(j, '}');
}

static void split_json(struct json_out *j, const struct explain_split *s)
{
	json_key_open(j, "split", '{');
	json_key_z(j, "chosen", s->shape);
	json_key_z(j, "by", s->why);
	shape_json(j, "whole", "node", s->whole, NULL, s->whole, s->whole_ms);
	shape_json(j, "pair", "prefill", s->prefill, "decode", s->decode, s->pair_ms);
	shape_json(j, "continues", "node", s->continues, NULL, s->continues, s->continues_ms);
	json_key_u64(j, "moved_tokens", s->moved_tokens);
	put_real(j, "transfer_ms", (double)s->transfer_ms);
	json_close(j, '}');
}

/* Write the peers, if the request could leave for any. */
static void peers_json(struct json_out *j, const struct explain_decision *d)
{
	if (d->n_peers == 0)
		return;
	json_key_open(j, "peers", '[');
	for (size_t i = 0; i < d->n_peers; i++) {
		const struct explain_peer *p = &d->peers[i];
		json_open(j, '{');
		json_key_str(j, "peer", p->peer);
		json_key_bool(j, "left", p->left);
		json_key_z(j, "by", p->by);
		put_real(j, "ttft_ms", (double)p->ttft_ms);
		json_key_u64(j, "held_blocks", p->held);
		if (p->price >= 0)
			json_key_f64(j, "price", (double)p->price);
		if (p->joules >= 0)
			put_real(j, "joules", (double)p->joules);
		json_close(j, '}');
	}
	json_close(j, ']');
}

static void decision_json(struct json_out *j, const struct explain_decision *d, bool brief)
{
	json_open(j, '{');
	put_time(j, "at", d->at_ms);
	decision_head(j, d);
	if (brief) {
		json_close(j, '}');
		return;
	}
	if (d->split.shape != NULL)
		split_json(j, &d->split);
	peers_json(j, d);
	json_key_open(j, "candidates", '[');
	for (size_t i = 0; i < d->n; i++)
		cand_json(j, &d->cands[i], cand_is_picked(d, i));
	json_close(j, ']');
	json_key_u64(j, "candidates_not_kept", d->n_all > d->n ? d->n_all - d->n : 0);
	json_key_open(j, "shadows", '[');
	for (size_t i = 0; i < d->n_shadows; i++)
		shadow_json(j, &d->shadows[i]);
	json_close(j, ']');
	json_close(j, '}');
}

static void brief_cand(struct json_out *j, const struct explain_cand *c)
{
	json_open(j, '{');
	json_key_str(j, "node", c->node);
	if (c->why != EXPLAIN_ELIGIBLE)
		json_key_z(j, "why", whys[c->why]);
	for (size_t i = 0; i < EXPLAIN_FIELDS; i++)
		if (c->v[i].u != 0 && fields[i].group == NULL)
			put_number(j, c, i);
	put_real(j, "ttft_ms", explain_ttft_ms(c));
	json_close(j, '}');
}

static void brief_with(const struct explain_decision *d, size_t n, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	decision_head(&j, d);
	if (d->split.shape != NULL)
		split_json(&j, &d->split);
	peers_json(&j, d);
	json_key_open(&j, "candidates", '[');
	for (size_t i = 0; i < n; i++)
		brief_cand(&j, &d->cands[i]);
	json_close(&j, ']');
	if (d->n_all > n)
		json_key_u64(&j, "candidates_left_out", d->n_all - n);
	json_close(&j, '}');
}

/* Node ids are visible ASCII; the other texts are constants. */
void explain_brief(const struct explain_decision *d, struct cgn_buf *out)
{
	size_t n = d->n + 1;
	do {
		out->n = 0;
		brief_with(d, --n, out);
	} while (out->n > EXPLAIN_BRIEF && n > 0 && !out->bad);
}

/* ---- requests ---- */

/* An entry, and when its request was last seen. */
struct found {
	const struct explain_head *h;
	size_t ring;
	uint64_t newest_ms; /* Time of the request's newest entry. */
};

static int by_request(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	if (x->ring != y->ring)
		return x->ring < y->ring ? -1 : 1;
	if (x->h->request != y->h->request)
		return x->h->request < y->h->request ? -1 : 1;
	return 0;
}

static bool same_request(const struct found *a, const struct found *b)
{
	return a->ring == b->ring && a->h->request == b->h->request;
}

/* Newest request first; within a request, the decisions in order, then its end. */
static int by_age(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	if (x->newest_ms != y->newest_ms)
		return x->newest_ms > y->newest_ms ? -1 : 1;
	int request = by_request(a, b);
	if (request != 0)
		return -request;
	return x->h->before < y->h->before ? -1 : x->h->before > y->h->before;
}

static const struct explain_head *next_of(const struct cgn_buf *b, size_t *place)
{
	if (*place >= b->n)
		return NULL;
	const struct explain_head *h = (const struct explain_head *)(const void *)(b->p + *place);
	*place += h->bytes;
	return h;
}

size_t explain_count(const struct cgn_buf *found, size_t n)
{
	size_t entries = 0, place;
	for (size_t i = 0; i < n; i++)
		for (place = 0; next_of(&found[i], &place) != NULL;)
			entries++;
	return entries;
}

static void found_sort(struct found *v, size_t n)
{
	size_t begin = 0;
	qsort(v, n, sizeof *v, by_request);
	while (begin < n) {
		size_t end = begin;
		uint64_t newest = 0;
		for (; end < n && same_request(&v[begin], &v[end]); end++)
			newest = v[end].h->at_ms > newest ? v[end].h->at_ms : newest;
		for (; begin < end; begin++)
			v[begin].newest_ms = newest;
	}
	qsort(v, n, sizeof *v, by_age);
}

static struct found *found_gather(const struct cgn_buf *found, size_t n, size_t *count)
{
	const struct explain_head *h;
	size_t k = 0, place;
	*count = explain_count(found, n);
	struct found *v = calloc(*count + 1, sizeof *v);
	for (size_t i = 0; v != NULL && i < n; i++)
		for (place = 0; (h = next_of(&found[i], &place)) != NULL;)
			v[k++] = (struct found){.h = h, .ring = i};
	if (v != NULL)
		found_sort(v, k);
	return v;
}

static void end_json(struct json_out *j, const struct explain_end *e)
{
	json_key_u64(j, "status", e->status);
	json_key_z(j, "outcome", e->outcome);
	json_key_str(j, "node", e->node);
	json_key_u64(j, "tries", e->tries);
	json_key_bool(j, "direct", e->direct);
	json_key_bool(j, "stream", e->stream);
	if (e->session.n > 0) {
		json_key_str(j, "session", e->session);
		json_key_u64(j, "turn", e->turn);
	}
	if (e->has_prompt) {
		json_key_u64(j, "prompt_tokens", e->prompt_tokens);
		json_key_u64(j, "completion_tokens", e->answer_tokens);
	}
	put_real(j, "total_ms", (double)e->total_us / 1e3);
	json_key_open(j, "phases_ms", '{');
	for (size_t i = 0; i < EXPLAIN_PHASES; i++)
		put_real(j, phases[i], (double)e->phase_us[i] / 1e3);
	json_close(j, '}');
}

/* Write the quote beside what the request took. */
static void quoted_json(struct json_out *j, const struct explain_end *e)
{
	json_key_open(j, "quote", '{');
	for (unsigned f = 0; f < QUOTE_FIGURES; f++) {
		const struct explain_quoted *q = &e->quoted[f];
		double scale = quote_figure_scale((enum quote_figure)f);
		if (!(q->high >= 0))
			continue;
		json_key_open(j, quote_figure_member((enum quote_figure)f), '{');
		put_real(j, "low", (double)q->low * scale);
		put_real(j, "expected", (double)q->expected * scale);
		put_real(j, "high", (double)q->high * scale);
		if (q->actual >= 0)
			put_real(j, "actual", (double)q->actual * scale);
		json_close(j, '}');
	}
	json_close(j, '}');
}

/* Write predicted and actual values. |last|: the decision that led to the answer; |e| NULL: the request has
 * not ended. */
static void predictions_json(struct json_out *j, const struct explain_decision *last,
	const struct explain_end *e)
{
	json_key_open(j, "cached_tokens", '{');
	if (e != NULL && e->has_cached) {
		json_key_u64(j, "predicted", e->cached_predicted);
		json_key_u64(j, "actual", e->cached);
	}
	json_close(j, '}');
	json_key_open(j, "ttft_ms", '{');
	if (last != NULL && last->verdict == ROUTE_PICKED && last->n > 0)
		put_real(j, "predicted", explain_ttft_ms(&last->cands[0]));
	if (e != NULL && e->first_us > 0) {
		put_real(j, "actual", (double)e->first_us / 1e3);
		put_real(j, "with_queue_and_retries", (double)e->ttft_us / 1e3);
	}
	json_close(j, '}');
}

static void request_json(struct json_out *j, const struct found *v, size_t n, bool brief)
{
	struct explain_decision d = {.n = 0};
	struct explain_end e;
	bool ended = v[n - 1].h->kind == EXPLAIN_ENDED, decided = false;
	struct cgn_str model;
	if (ended)
		explain_get_end(v[n - 1].h, &e);
	json_open(j, '{');
	json_key_str(j, "id", explain_id_of(v[0].h));
	put_time(j, "at", v[0].h->at_ms);
	json_key_open(j, "tries", '[');
	for (size_t i = 0; i < n; i++) {
		if (v[i].h->kind != EXPLAIN_DECIDED)
			continue;
		explain_get_decision(v[i].h, &d);
		decision_json(j, &d, brief);
		decided = true;
	}
	json_close(j, ']');
	model = ended ? e.model : d.model;
	json_key_str(j, "model", model);
	json_key_bool(j, "in_flight", !ended);
	predictions_json(j, decided ? &d : NULL, ended ? &e : NULL);
	if (ended) {
		json_key_open(j, "end", '{');
		end_json(j, &e);
		quoted_json(j, &e);
		json_close(j, '}');
	}
	json_close(j, '}');
}

bool explain_write(const struct cgn_buf *found, size_t n, size_t most, bool brief, struct cgn_buf *out)
{
	size_t count, begin = 0;
	struct json_out j = json_out_to(out);
	struct found *v = found_gather(found, n, &count);
	if (v == NULL)
		return false;
	json_open(&j, '[');
	for (size_t done = 0; begin < count && done < most; done++) {
		size_t end = begin + 1;
		while (end < count && same_request(&v[begin], &v[end]))
			end++;
		request_json(&j, v + begin, end - begin, brief);
		begin = end;
	}
	json_close(&j, ']');
	free(v);
	return !out->bad;
}
