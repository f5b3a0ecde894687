/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/breaker.h"

#include <string.h>

/* A word: state 2 bits | reason 4 | level 4 | streak 8 | time 46, in milliseconds. The meaning of the time depends
 * on the state. OPEN: the breaker becomes half-open then. PROBING: the probe is given up then. CLOSED: an opening
 * before then raises the level, because the trouble is the same. */
enum circuit {
#define CIRCUIT(id, exits, why) CIRCUIT_##id,
#include "policy/node/breaker/circuits.def"
#undef CIRCUIT
};

static const unsigned circuit_exits[] = {
#define TO(id)                  1U << CIRCUIT_##id
#define CIRCUIT(id, exits, why) [CIRCUIT_##id] = (exits),
#include "policy/node/breaker/circuits.def"
#undef CIRCUIT
#undef TO
};

#define LEVEL_MAX  15U
#define STREAK_MAX 255U
#define TIME_MAX   ((UINT64_C(1) << 46) - 1)

struct breaker_fields {
	enum circuit state;
	unsigned reason, level, streak;
	uint64_t ms;
};

static struct breaker_fields word_unpack(uint64_t w)
{
	return (struct breaker_fields){.state = (enum circuit)(w & 3),
		.reason = w >> 2 & 15,
		.level = w >> 6 & 15,
		.streak = w >> 10 & 255,
		.ms = w >> 18};
}

static uint64_t word_pack(const struct breaker_fields *f)
{
	uint64_t ms = f->ms < TIME_MAX ? f->ms : TIME_MAX;
	return (uint64_t)f->state | (uint64_t)f->reason << 2 | (uint64_t)f->level << 6 |
		(uint64_t)f->streak << 10 | ms << 18;
}

/* Milliseconds of |t|, rounded up, so that nothing is due too early. */
static uint64_t ms_of(cgn_nsec t)
{
	return t / CGN_MSEC + (t % CGN_MSEC != 0);
}

static const struct {
	const char *text;
	bool counts, retriable, begun;
} failure_rows[BREAKER_FAILURES] = {
#define FAILURE(id, text, counts, retriable, begun, help) {text, counts, retriable, begun},
#include "policy/node/breaker/failures.def"
#undef FAILURE
};

static const struct {
	const char *text, *label;
} reason_rows[BREAKER_REASONS] = {
	{"", ""},
#define REASON(id, text, label) {text, label},
#include "policy/node/breaker/reasons.def"
#undef REASON
};

const char *breaker_failure_text(enum breaker_failure f)
{
	CGN_MUST((unsigned)f < BREAKER_FAILURES);
	return failure_rows[f].text;
}

bool breaker_failure_counts(enum breaker_failure f)
{
	CGN_MUST((unsigned)f < BREAKER_FAILURES);
	return failure_rows[f].counts;
}

bool breaker_failure_begun(enum breaker_failure f)
{
	CGN_MUST((unsigned)f < BREAKER_FAILURES);
	return failure_rows[f].begun;
}

unsigned breaker_failure_bit(const char *text)
{
	for (unsigned i = 0; i < BREAKER_FAILURES; i++)
		if (failure_rows[i].retriable && strcmp(failure_rows[i].text, text) == 0)
			return 1U << i;
	return 0;
}

void breaker_failure_words(struct cgn_buf *out)
{
	const char *comma = "";
	for (unsigned i = 0; i < BREAKER_FAILURES; i++) {
		if (!failure_rows[i].retriable)
			continue;
		cgn_buf_fmt(out, "%s%s", comma, failure_rows[i].text);
		comma = ", ";
	}
}

const char *breaker_reason_text(enum breaker_reason r)
{
	CGN_MUST((unsigned)r < BREAKER_REASONS);
	return reason_rows[r].text;
}

const char *breaker_reason_label(enum breaker_reason r)
{
	CGN_MUST((unsigned)r < BREAKER_REASONS);
	return reason_rows[r].label;
}

/* ---- steps ---- */

/* Only this function changes the state. |ms|: the word's time in the new state. */
static void circuit_move(struct breaker_fields *f, enum circuit to, uint64_t ms)
{
	CGN_MUST(f->state < CGN_COUNT(circuit_exits) && circuit_exits[f->state] & 1U << to);
	f->state = to;
	f->ms = ms;
}

static cgn_nsec open_duration(const struct breaker_rules *rules, unsigned level)
{
	cgn_nsec d = rules->open_for;
	for (unsigned i = 0; i < level && d < BREAKER_OPEN_MAX; i++)
		d *= 2;
	return d < BREAKER_OPEN_MAX || level == 0 ? d : BREAKER_OPEN_MAX;
}

static void breaker_open(struct breaker_fields *f, const struct breaker_rules *rules,
	const struct breaker_input *in, unsigned reason)
{
	bool again = f->state != CIRCUIT_CLOSED || in->now / CGN_MSEC < f->ms;
	double jitter = in->jitter > 0 ? (in->jitter < 1 ? in->jitter : 1) : 0;
	if (!again)
		f->level = 0;
	else if (f->level < LEVEL_MAX)
		f->level++;
	cgn_nsec d = open_duration(rules, f->level);
	circuit_move(f, CIRCUIT_OPEN, ms_of(in->now + d + (cgn_nsec)((double)d * BREAKER_JITTER * jitter)));
	f->reason = reason;
}

/* An opening within twice the time of this opening counts as the same trouble. */
static void breaker_close(struct breaker_fields *f, const struct breaker_rules *rules, cgn_nsec now)
{
	circuit_move(f, CIRCUIT_CLOSED, ms_of(now + 2 * open_duration(rules, f->level)));
	f->reason = BREAKER_FOR_NOTHING;
	f->streak = 0;
}

static void failure_count(struct breaker_fields *f, const struct breaker_rules *rules,
	const struct breaker_input *in)
{
	if (f->state != CIRCUIT_CLOSED)
		return; /* The request was sent before the breaker opened. */
	if (f->streak < STREAK_MAX)
		f->streak++;
	if (rules->failures > 0 && f->streak >= rules->failures)
		breaker_open(f, rules, in, BREAKER_FOR_FAILURES);
}

static void probe_ended(struct breaker_fields *f, const struct breaker_rules *rules,
	const struct breaker_input *in)
{
	if (in->event == BREAKER_PROBE_OK && f->state != CIRCUIT_CLOSED)
		breaker_close(f, rules, in->now);
	else if (in->event == BREAKER_PROBE_BAD && f->state == CIRCUIT_PROBING)
		breaker_open(f, rules, in, f->reason);
	else if (in->event == BREAKER_PROBE_LEFT && f->state == CIRCUIT_PROBING)
		circuit_move(f, CIRCUIT_OPEN,
			in->now / CGN_MSEC); /* The time is over: another probe may go. */
}

static void probe_claim(struct breaker_fields *f, cgn_nsec now)
{
	circuit_move(f, CIRCUIT_PROBING, ms_of(now + BREAKER_PROBE_MAX));
}

uint64_t breaker_step(uint64_t word, const struct breaker_rules *rules, const struct breaker_input *in)
{
	struct breaker_fields f = word_unpack(word);
	switch (in->event) {
	case BREAKER_OK:
		if (f.state == CIRCUIT_CLOSED)
			f.streak = 0;
		break;
	case BREAKER_FAILED:
		failure_count(&f, rules, in);
		break;
	case BREAKER_CLAIM:
		if (breaker_gate(word, in->now) == BREAKER_PROBE)
			probe_claim(&f, in->now);
		break;
	case BREAKER_PROBE_OK:
	case BREAKER_PROBE_BAD:
	case BREAKER_PROBE_LEFT:
		probe_ended(&f, rules, in);
		break;
	case BREAKER_TRIP:
		if (breaker_state(word, in->now) != BREAKER_OPEN)
			breaker_open(&f, rules, in, in->reason);
		break;
	case BREAKER_HINT:
		if (f.state == CIRCUIT_OPEN && f.ms > in->now / CGN_MSEC)
			f.ms = in->now / CGN_MSEC;
		break;
	}
	return word_pack(&f);
}

struct breaker_change breaker_apply(breaker_word *w, const struct breaker_rules *rules,
	const struct breaker_input *in)
{
	struct breaker_change c = {.was = atomic_load_explicit(w, memory_order_relaxed)};
	do
		c.is = breaker_step(c.was, rules, in);
	while (c.is != c.was &&
		!atomic_compare_exchange_weak_explicit(w, &c.was, c.is, memory_order_relaxed,
			memory_order_relaxed));
	return c;
}

/* ---- readings ---- */

enum breaker_state breaker_state(uint64_t word, cgn_nsec now)
{
	struct breaker_fields f = word_unpack(word);
	if (f.state == CIRCUIT_CLOSED)
		return BREAKER_CLOSED;
	return f.state == CIRCUIT_PROBING || now / CGN_MSEC >= f.ms ? BREAKER_HALF_OPEN : BREAKER_OPEN;
}

const char *breaker_state_text(enum breaker_state s)
{
	static const char *const names[] = {"closed", "half-open", "open"};
	CGN_MUST((unsigned)s < CGN_COUNT(names));
	return names[s];
}

enum breaker_reason breaker_why(uint64_t word)
{
	unsigned reason = word_unpack(word).reason;
	return reason < BREAKER_REASONS ? (enum breaker_reason)reason : BREAKER_FOR_NOTHING;
}

bool breaker_opened(const struct breaker_change *c)
{
	struct breaker_fields was = word_unpack(c->was), is = word_unpack(c->is);
	return is.state == CIRCUIT_OPEN &&
		(was.state == CIRCUIT_CLOSED || was.level != is.level || was.ms < is.ms);
}

bool breaker_closed(const struct breaker_change *c)
{
	return word_unpack(c->was).state != CIRCUIT_CLOSED && word_unpack(c->is).state == CIRCUIT_CLOSED;
}

cgn_nsec breaker_left(uint64_t word, cgn_nsec now)
{
	return breaker_state(word, now) == BREAKER_OPEN ? word_unpack(word).ms * CGN_MSEC - now : 0;
}

void breaker_text(uint64_t word, cgn_nsec now, struct cgn_buf *out)
{
	struct breaker_fields f = word_unpack(word);
	enum breaker_state s = breaker_state(word, now);
	cgn_buf_putz(out, breaker_state_text(s));
	if (s == BREAKER_HALF_OPEN) {
		cgn_buf_putz(out,
			f.state == CIRCUIT_PROBING ? ": a request is trying it" : ": waits for a request");
		return;
	}
	if (s == BREAKER_CLOSED && f.streak > 0)
		cgn_buf_fmt(out, ": %u failure%s in a row", f.streak, f.streak > 1 ? "s" : "");
	if (s == BREAKER_CLOSED)
		return;
	cgn_buf_putz(out, ": ");
	if (f.reason == BREAKER_FOR_FAILURES)
		cgn_buf_fmt(out, "%u ", f.streak);
	cgn_buf_fmt(out, "%s, %llu s left", breaker_reason_text(breaker_why(word)),
		(unsigned long long)((breaker_left(word, now) + CGN_SEC - 1) / CGN_SEC));
}

enum breaker_gate breaker_gate(uint64_t word, cgn_nsec now)
{
	struct breaker_fields f = word_unpack(word);
	if (f.state == CIRCUIT_CLOSED)
		return BREAKER_PASS;
	return now / CGN_MSEC >= f.ms ? BREAKER_PROBE : BREAKER_SHUT;
}

unsigned breaker_badness(uint64_t word)
{
	struct breaker_fields f = word_unpack(word);
	bool silent = f.reason == BREAKER_FOR_STALL || f.reason == BREAKER_FOR_SILENT;
	return f.level + (silent ? LEVEL_MAX + 1 : 0);
}
