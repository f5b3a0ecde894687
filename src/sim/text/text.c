/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/text/text.h"

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/mix/mix.h"
#include "sim/text/vocab.h"

struct word {
	const char *lower, *upper; /* Both begin with a space. */
	uint8_t n;
};

static const struct word words[] = {
#define W(first, upper, rest) {" " first rest, " " upper rest, sizeof(" " first rest) - 1},
#include "sim/text/words.def"
#undef W
};
_Static_assert(sizeof words / sizeof words[0] == 128, "a draw is a mask");

static uint64_t draw_next(uint64_t *rng)
{
	return mix_splitmix(rng);
}

void sim_text_words(struct sim_text *t, uint64_t seed)
{
	*t = (struct sim_text){.rng = mix64(seed)};
}

void sim_text_script(struct sim_text *t, struct cgn_str script)
{
	*t = (struct sim_text){.script = script, .scripted = true};
}

static struct cgn_str next_word(struct sim_text *t)
{
	uint64_t r = draw_next(&t->rng);
	const struct word *w = &words[r & 127];
	if (t->words_left == 1) { /* The full stop. */
		t->words_left = 0;
		return CGN_STR(".");
	}
	bool opens = t->words_left == 0;
	if (opens)
		t->words_left = (uint16_t)(5 + (r >> 7) % 10);
	t->words_left--;
	if (t->begun)
		return (struct cgn_str){opens ? w->upper : w->lower, w->n};
	t->begun = true;
	return (struct cgn_str){w->upper + 1, w->n - 1U};
}

static bool is_continuation(char c)
{
	return ((uint8_t)c & 0xc0) == 0x80;
}

static bool next_of_script(struct sim_text *t, struct cgn_str *piece, uint32_t *id)
{
	if (t->script.n == 0)
		return false;
	*piece = sim_token_cut(&t->script, id);
	bool unfinished = t->script.n > 0 && is_continuation(t->script.p[0]);
	if (unfinished && t->pending < 3) {
		t->pending = (uint8_t)(t->pending + piece->n);
		piece->n = 0;
		return true;
	}
	*piece = (struct cgn_str){piece->p - t->pending, piece->n + t->pending};
	t->pending = 0;
	return true;
}

bool sim_text_next(struct sim_text *t, struct cgn_str *piece, uint32_t *id)
{
	if (t->scripted)
		return next_of_script(t, piece, id);
	*piece = next_word(t);
	struct cgn_str all = *piece;
	(void)sim_token_cut(&all, id);
	*piece = (struct cgn_str){piece->p + t->cut, piece->n - t->cut};
	t->cut = 0;
	return true;
}

bool sim_text_skip(struct sim_text *t, struct cgn_str resumed, struct sim_reader *reader,
	struct sim_chain *chain, uint32_t *n)
{
	struct sim_text walk = *t, last = *t;
	struct cgn_str rest = resumed, piece;
	uint32_t id = 0, whole = 0;
	while (rest.n > 0) {
		last = walk;
		if (!sim_text_next(&walk, &piece, &id) || piece.n == 0)
			return false;
		size_t k = piece.n < rest.n ? piece.n : rest.n;
		if (memcmp(piece.p, rest.p, k) != 0)
			return false;
		rest = (struct cgn_str){rest.p + k, rest.n - k};
		last.cut = (uint8_t)k;
		whole += k == piece.n;
		if (k < piece.n)
			walk = last;
	}
	for (uint32_t i = 0; chain != NULL && i < whole; i++) {
		(void)sim_text_next(t, &piece, &id);
		sim_chain_add(chain, reader != NULL ? sim_reader_word(reader, piece) : id);
	}
	*t = walk;
	*n = whole;
	return true;
}

size_t sim_text_phrase(uint64_t *rng, unsigned n, char *out, size_t cap)
{
	size_t at = 0;
	for (unsigned i = 0; i < n; i++) {
		const struct word *w = &words[draw_next(rng) & 127];
		size_t skip = i == 0 ? 1 : 0;
		if (w->n - skip > cap - at)
			break;
		memcpy(out + at, w->lower + skip, w->n - skip);
		at += w->n - skip;
	}
	return at;
}

struct cgn_str sim_text_alternative(uint64_t seed, uint64_t at, unsigned k)
{
	const struct word *w = &words[(mix64(seed ^ mix64(at)) + 37 * (uint64_t)k) & 127];
	return (struct cgn_str){w->lower, w->n};
}

double sim_text_logprob(uint64_t seed, uint64_t at, unsigned k)
{
	double base = (double)(mix64(seed + at) & 1023) / 1024.0;
	return -(base + 0.0009765625) - 1.5 * k;
}

const char *sim_finish_name(enum sim_finish f)
{
	static const char *const names[SIM_FINISH_COUNT] = {"stop", "length", "tool_calls", "abort"};
	CGN_MUST(f < SIM_FINISH_COUNT);
	return names[f];
}

/* Return the index of the first stop string in |text| that ends within the last |fresh| bytes, and its offset
 * in |*at|. */
static int find_stop(struct cgn_str text, size_t fresh, const struct sim_limits *lim, size_t *at)
{
	int found = -1;
	for (unsigned i = 0; i < lim->n_stops; i++) {
		struct cgn_str stop = lim->stops[i];
		size_t back = fresh + stop.n - 1;
		size_t from = text.n > back ? text.n - back : 0;
		const char *hit = memmem(text.p + from, text.n - from, stop.p, stop.n);
		if (hit != NULL && (found < 0 || (size_t)(hit - text.p) < *at)) {
			found = (int)i;
			*at = (size_t)(hit - text.p);
		}
	}
	return found;
}

/* True when a stop string ended the answer. */
static bool plan_stopped(struct cgn_buf *seen, struct cgn_str piece, const struct sim_limits *lim,
	struct sim_plan *out)
{
	cgn_buf_str(seen, piece);
	if (seen->bad || piece.n == 0 || out->n_tokens < lim->min_tokens)
		return false;
	size_t at = 0;
	out->stop_index = find_stop(cgn_buf_view(seen), piece.n, lim, &at);
	if (out->stop_index < 0)
		return false;
	size_t bytes = at + (lim->keep_stop ? lim->stops[out->stop_index].n : 0);
	out->text_bytes = bytes > lim->resumed.n ? bytes - lim->resumed.n : 0;
	return true;
}

static bool plan_over(const struct sim_text *t, const struct sim_limits *lim, struct sim_plan *out)
{
	bool ends =
		!lim->ignore_eos && out->n_tokens >= lim->natural_tokens && out->n_tokens >= lim->min_tokens;
	bool natural = t->scripted ? t->script.n == 0 : ends;
	out->finish = natural ? SIM_FINISH_STOP : SIM_FINISH_LENGTH;
	return natural || out->n_tokens >= lim->max_tokens;
}

bool sim_plan_make(struct sim_text text, const struct sim_limits *lim, struct sim_reader *reader,
	struct sim_chain *chain, struct sim_plan *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf seen = {0};
	*out = (struct sim_plan){.stop_index = -1};
	cgn_buf_str(&seen, lim->resumed);
	while (!plan_over(&text, lim, out)) {
		struct cgn_str piece;
		uint32_t id = 0;
		if (!sim_text_next(&text, &piece, &id))
			break;
		out->n_tokens++;
		out->text_bytes += piece.n;
		if (chain != NULL)
			sim_chain_add(chain, reader != NULL ? sim_reader_word(reader, piece) : id);
		if (lim->n_stops > 0 && plan_stopped(&seen, piece, lim, out)) {
			out->finish = SIM_FINISH_STOP;
			break;
		}
	}
	return !seen.bad;
}
