/* SPDX-License-Identifier: Apache-2.0 */
/* write: entries as messages, and one decision on one line. */
#include <math.h>
#include <stdlib.h>

#include "base/core/utc.h"
#include "base/pb/pb_json.h"
#include "policy/route/explain/explain_priv.h"

#define BRIEF_LIMIT ((size_t)64 << 10) /* Bytes of the message of one decision. */
/* Members of ExplainedTry in the response header: those of /explain, but for a candidate's zeros. */
#define BRIEF                                                                                                                                  \
	"leg try policy verdict node? unit over? margin% blocks common_blocks block_tokens prompt_tokens chain? took_us choice*{"              \
	"split{chosen by whole{node? cost_ms} pair{prefill? decode? cost_ms} continues{node? cost_ms} moved_tokens transfer_ms} "              \
	"peers?{peer left by ttft_ms held_blocks price% joules%} candidates{node why? held_blocks? reuse_blocks? inflight? others? decoding? " \
	"queued_tokens? score? joules? ttft_ms} candidates_left_out=candidates_not_kept?}"

static const char *const whys[EXPLAIN_WHYS] = {"eligible", "full", "tried", "breaker", "role", "handoff",
	"energy"};
static const char *const verdicts[] = {"picked", "nobody", "all_full"};
static const char *const units[EXPLAIN_UNITS] = {"score", "ms", "requests", "turn"};

/* Round to six digits: a float has no more. */
static double six_digits(double v)
{
	char text[32];
	(void)snprintf(text, sizeof text, "%.6g", v);
	return isfinite(v) ? strtod(text, NULL) : v;
}

static char *time_text(struct pb_tree *t, uint64_t ms)
{
	char day[32], text[48];
	(void)cgn_utc_text((int64_t)(ms / 1000), "%Y-%m-%dT%H:%M:%S", day, sizeof day);
	int n = snprintf(text, sizeof text, "%s.%03uZ", day, (unsigned)(ms % 1000));
	return pb_tree_text(t, (struct cgn_str){text, (size_t)n});
}

/* ---- a decision ---- */

static void cand_fill(struct pb_tree *t, const struct explain_cand *c, Cognitora__V1__ExplainedCandidate *to)
{
	to->node = pb_tree_text(t, c->node);
	to->why = pb_text(whys[c->why]);
	to->held_by_tier = PB_NEW(t, explained_tiers);
	to->terms = PB_NEW(t, explained_terms);
	to->predicted_ms = PB_NEW(t, explained_costs);
	if (t->bad)
		return; /* |to| and its parts may be the same spare message. */
#define VALUE_U(v)              v.u
#define VALUE_F(v)              six_digits((double)v.f)
#define FIELD(id, kind, member) to->member = VALUE_##kind(c->v[EXPLAIN_##id]);
#include "policy/route/explain/fields.def"
#undef FIELD
}

double explain_ttft_ms(const struct explain_cand *c)
{
	return (double)c->v[EXPLAIN_QUEUE_MS].f + (double)c->v[EXPLAIN_PREFILL].f +
		(double)c->v[EXPLAIN_FETCH].f;
}

/* Describe a shape on the node |node|, or on two; empty: no node. */
static Cognitora__V1__ExplainedShape *shape_new(struct pb_tree *t, struct cgn_str node,
	struct cgn_str prefill, struct cgn_str decode, float ms)
{
	Cognitora__V1__ExplainedShape *to = PB_NEW(t, explained_shape);
	to->node = pb_tree_text(t, node);
	to->prefill = pb_tree_text(t, prefill);
	to->decode = pb_tree_text(t, decode);
	to->cost_ms = six_digits((double)ms);
	return to;
}

static void split_fill(struct pb_tree *t, const struct explain_split *s, Cognitora__V1__ExplainedSplit *to)
{
	to->chosen = pb_text(s->shape);
	to->by = pb_text(s->why);
	to->whole = shape_new(t, s->whole, CGN_STR(""), CGN_STR(""), s->whole_ms);
	to->pair = shape_new(t, CGN_STR(""), s->prefill, s->decode, s->pair_ms);
	to->continues = shape_new(t, s->continues, CGN_STR(""), CGN_STR(""), s->continues_ms);
	to->moved_tokens = s->moved_tokens;
	to->transfer_ms = six_digits((double)s->transfer_ms);
}

static void peer_fill(struct pb_tree *t, const struct explain_peer *p, Cognitora__V1__ExplainedPeer *to)
{
	to->peer = pb_tree_text(t, p->peer);
	to->left = p->left;
	to->by = pb_text(p->by);
	to->ttft_ms = six_digits((double)p->ttft_ms);
	to->held_blocks = p->held;
	to->price = p->price >= 0 ? (double)p->price : (double)NAN;
	to->joules = p->joules >= 0 ? six_digits((double)p->joules) : (double)NAN;
}

static void shadow_fill(struct pb_tree *t, const struct explain_shadow *s, Cognitora__V1__ExplainedShadow *to)
{
	to->policy = pb_text(s->policy);
	to->node = pb_tree_text(t, s->node);
	to->agrees = s->agrees;
	to->believed_ms = six_digits((double)s->believed_ms);
	to->held_blocks = s->held;
}

static void choice_fill(struct pb_tree *t, const struct explain_decision *d,
	Cognitora__V1__ExplainedChoice *to)
{
	if (d->split.shape != NULL)
		split_fill(t, &d->split, to->split = PB_NEW(t, explained_split));
	for (size_t i = 0; i < d->n_peers; i++)
		peer_fill(t, &d->peers[i], PB_ADD(t, to, peers, explained_peer));
	for (size_t i = 0; i < d->n; i++)
		cand_fill(t, &d->cands[i], PB_ADD(t, to, candidates, explained_candidate));
	if (d->verdict == ROUTE_PICKED && d->n > 0 && !t->bad)
		to->candidates[0]->why = pb_text("won");
	to->candidates_not_kept = d->n_all > d->n ? d->n_all - (uint32_t)d->n : 0;
	for (size_t i = 0; i < d->n_shadows; i++)
		shadow_fill(t, &d->shadows[i], PB_ADD(t, to, shadows, explained_shadow));
}

static void decision_fill(struct pb_tree *t, const struct explain_decision *d, bool brief,
	Cognitora__V1__ExplainedTry *to)
{
	char digest[24];
	bool picked = d->verdict == ROUTE_PICKED && d->n > 0;
	bool compared = picked && d->n > 1 && d->unit != EXPLAIN_TURN && d->cands[1].why == EXPLAIN_ELIGIBLE;
	(void)snprintf(digest, sizeof digest, "%016llx", (unsigned long long)d->chain);
	to->at = time_text(t, d->at_ms);
	to->leg = pb_text(d->attempt == 0 ? "prefill" : "answer");
	to->try_ = d->attempt;
	to->policy = pb_text(d->policy);
	to->verdict = pb_text(verdicts[d->verdict]);
	to->node = picked ? pb_tree_text(t, d->cands[0].node) : to->node;
	to->unit = pb_text(units[d->unit]);
	to->over = compared ? pb_tree_text(t, d->cands[1].node) : to->over;
	to->margin = compared ? six_digits((double)d->margin) : (double)NAN;
	to->blocks = d->blocks;
	to->common_blocks = d->common;
	to->block_tokens = d->block_tokens;
	to->prompt_tokens = d->prompt_tokens;
	to->chain = d->chain != 0 ? pb_tree_text(t, cgn_str_of(digest)) : to->chain;
	to->took_us = six_digits((double)d->took_ns / 1e3);
	if (!brief)
		choice_fill(t, d, to->choice = PB_NEW(t, explained_choice));
}

/* Node ids are visible ASCII; the other texts are constants. */
void explain_brief(const struct explain_decision *d, struct cgn_buf *out)
{
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	Cognitora__V1__ExplainedTry to = COGNITORA__V1__EXPLAINED_TRY__INIT;
	pb_tree_init(&t, BRIEF_LIMIT);
	decision_fill(&t, d, false, &to);
	out->bad = out->bad || t.bad;
	for (size_t i = 0; i < d->n && !t.bad; i++) {
		to.choice->candidates[i]->ttft_ms = six_digits(explain_ttft_ms(&d->cands[i]));
		if (d->cands[i].why == EXPLAIN_ELIGIBLE)
			to.choice->candidates[i]->why = pb_text("");
	}
	for (size_t n = d->n + 1; n-- > 0 && !out->bad && (n == d->n || out->n > EXPLAIN_BRIEF);) {
		struct json_out j = json_out_to(out);
		out->n = 0;
		to.choice->n_candidates = n;
		to.choice->candidates_not_kept = d->n_all > n ? d->n_all - (uint32_t)n : 0;
		pb_json_select(&j, &to, BRIEF);
	}
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
	struct found *v = CGN_NEW_ARRAY(struct found, *count);
	for (size_t i = 0; i < n; i++)
		for (place = 0; (h = next_of(&found[i], &place)) != NULL;)
			v[k++] = (struct found){.h = h, .ring = i};
	found_sort(v, k);
	return v;
}

/* Return the quote of |figure| beside what the request took; NULL: there is none. */
static Cognitora__V1__ExplainedQuote *quote_new(struct pb_tree *t, const struct explain_end *e,
	enum quote_figure figure)
{
	const struct explain_quoted *q = &e->quoted[figure];
	double scale = quote_figure_scale(figure);
	if (!(q->high >= 0))
		return NULL;
	Cognitora__V1__ExplainedQuote *to = PB_NEW(t, explained_quote);
	to->low = six_digits((double)q->low * scale);
	to->expected = six_digits((double)q->expected * scale);
	to->high = six_digits((double)q->high * scale);
	to->actual = q->actual >= 0 ? six_digits((double)q->actual * scale) : (double)NAN;
	return to;
}

static void quotes_fill(struct pb_tree *t, const struct explain_end *e, Cognitora__V1__ExplainedQuotes *to)
{
	to->ttft_ms = quote_new(t, e, QUOTE_TTFT);
	to->finish_ms = quote_new(t, e, QUOTE_FINISH);
	to->cost = quote_new(t, e, QUOTE_COST);
	to->joules = quote_new(t, e, QUOTE_JOULES);
}

static void end_fill(struct pb_tree *t, const struct explain_end *e, Cognitora__V1__ExplainedEnd *to)
{
	to->status = e->status;
	to->outcome = pb_text(e->outcome);
	to->node = pb_tree_text(t, e->node);
	to->tries = e->tries;
	to->direct = e->direct;
	to->stream = e->stream;
	to->total_ms = six_digits((double)e->total_us / 1e3);
	Cognitora__V1__ExplainedTurn *turn = e->session.n > 0 ? PB_NEW(t, explained_turn) : NULL;
	if (turn != NULL) {
		turn->session = pb_tree_text(t, e->session);
		turn->turn = e->turn;
	}
	Cognitora__V1__ExplainedUsage *usage = e->has_prompt ? PB_NEW(t, explained_usage) : NULL;
	if (usage != NULL) {
		usage->prompt_tokens = e->prompt_tokens;
		usage->completion_tokens = e->answer_tokens;
	}
	Cognitora__V1__ExplainedPhases *phases = PB_NEW(t, explained_phases);
	to->turn = turn;
	to->usage = usage;
	to->phases_ms = phases;
	quotes_fill(t, e, to->quote = PB_NEW(t, explained_quotes));
#define PHASE(id, member) phases->member = six_digits((double)e->phase_us[EXPLAIN_PHASE_##id] / 1e3);
#include "policy/route/explain/phases.def"
#undef PHASE
}

/* |e| NULL: the request has not ended. */
static void cached_fill(const struct explain_end *e, Cognitora__V1__ExplainedCached *to)
{
	bool known = e != NULL && e->has_cached;
	to->predicted = known ? e->cached_predicted : (double)NAN;
	to->actual = known ? e->cached : (double)NAN;
}

/* |last|: the decision that led to the answer. */
static void first_fill(const struct explain_decision *last, const struct explain_end *e,
	Cognitora__V1__ExplainedFirst *to)
{
	bool picked = last->verdict == ROUTE_PICKED && last->n > 0, came = e != NULL && e->first_us > 0;
	to->node_predicted = picked ? six_digits(explain_ttft_ms(&last->cands[0])) : (double)NAN;
	to->node_actual = came ? six_digits((double)e->first_us / 1e3) : (double)NAN;
	to->actual = came ? six_digits((double)e->ttft_us / 1e3) : (double)NAN;
}

static void request_fill(struct pb_tree *t, const struct found *v, size_t n, bool brief,
	Cognitora__V1__ExplainedRequest *to)
{
	struct explain_decision d = {.n = 0};
	struct explain_end e;
	bool ended = v[n - 1].h->kind == EXPLAIN_ENDED;
	to->id = pb_tree_text(t, explain_id_of(v[0].h));
	to->at = time_text(t, v[0].h->at_ms);
	for (size_t i = 0; i < n; i++) {
		if (v[i].h->kind != EXPLAIN_DECIDED)
			continue;
		explain_get_decision(v[i].h, &d);
		decision_fill(t, &d, brief, PB_ADD(t, to, tries, explained_try));
	}
	to->in_flight = !ended;
	if (ended) {
		explain_get_end(v[n - 1].h, &e);
		end_fill(t, &e, to->end = PB_NEW(t, explained_end));
	}
	to->model = pb_tree_text(t, ended ? e.model : d.model);
	cached_fill(ended ? &e : NULL, to->cached_tokens = PB_NEW(t, explained_cached));
	first_fill(&d, ended ? &e : NULL, to->ttft_ms = PB_NEW(t, explained_first));
}

void explain_fill(const struct cgn_buf *found, size_t n, size_t most, bool brief, struct pb_tree *t,
	Cognitora__V1__ExplainResponse *to)
{
	size_t count, begin = 0;
	struct found *v = found_gather(found, n, &count);
	while (begin < count && to->n_requests < most && !t->bad) {
		size_t end = begin + 1;
		while (end < count && same_request(&v[begin], &v[end]))
			end++;
		request_fill(t, v + begin, end - begin, brief, PB_ADD(t, to, requests, explained_request));
		begin = end;
	}
	free(v);
}
