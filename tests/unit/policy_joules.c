/* SPDX-License-Identifier: Apache-2.0 */
/* The joules that requests are told add up to what their nodes' meters gave to requests, whatever the traffic: whole
 * answers, streams, both, bursts, single requests with long gaps, one node and many, one router and two. Time is
 * simulated: nodes draw the watts of their load, agents read the counter once a second and tell routers as live
 * agents do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS 256
#include "chooser_world.h"
#include "policy/power/energy/meter.h"

#define STEP      CGN_MSEC
#define MOST      64 /* Requests at one time. */
#define NODES     4
#define ROUTERS   2
#define MOST_OFF  0.05
#define LIMIT_W   700
#define TELL_BUSY (250 * CGN_MSEC)
#define TELL_SOON (20 * CGN_MSEC)
#define WAY       CGN_MSEC /* From a router to the agent, and back. */

static const struct energy_curve real = {
	.decode = {120, 267, 303, 339, 375, 411, 447, 483, 519, 555},
	.prefill = 680,
};
/* 100 W idle, else 250 and 20 for each request, whatever it does. */
static const struct energy_curve cpu = {
	.decode = {100, 270, 290, 330, 410, 570, 890, 1530, 2810, 5370},
};

/* A kind of traffic, and how exact its sum has to be. */
struct traffic {
	const char *name;
	int nodes, routers;
	double gap_s;    /* Mean time between arrivals of bursts. */
	bool steady;     /* The gap is always the same. */
	int burst;       /* Requests that arrive together. */
	double whole;    /* Share of answers that come as a whole. */
	double prompt_s; /* Mean time that a prompt takes alone. */
	double answer_s;
	/* With a budget: */
	const struct energy_curve *curve; /* Without |prefill|, prompts count as streams. */
	double limit_w;                   /* Known to the agent; 0: not known. */
	double budget_w;
	double highest_w; /* No second may have more; 0: as the budget, and 5 %. */
	int clients;      /* Requests that are there at one time. */
	unsigned least;   /* So many are answered. */
};

static uint64_t seed;

static double any_share(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (double)(seed >> 11) / 9007199254740992.0;
}

/* A node and its agent: the requests as the agent counts them, and the power as it is. */
struct sim_node {
	struct energy_meter meter;
	double true_j, read_j;
	cgn_nsec read_at, told_at;
	bool is_due; /* The load changed since |told_at|. */
	bool is_on_its_way;
	struct energy_report report[ROUTERS];
	struct energy_load all, of[ROUTERS];
	uint32_t true_prompts, true_streams;
};

struct job {
	enum { FREE, SENT, PROMPT, ANSWER } there; /* As the agent and the engine have it. */
	enum { NOBODY, WAITS, READS } here;        /* As the router has it. */
	bool whole;
	int router;
	uint32_t tokens;
	uint16_t slot;
	cgn_nsec begin_at, first_at, end_at; /* At the agent. */
	struct chooser_ticket ticket;
};

struct sim {
	const struct traffic *t;
	struct world w[ROUTERS];
	struct energy_board *board[ROUTERS];
	struct sim_node node[NODES];
	struct job job[MOST];
	cgn_nsec now, next;
	double told_j;
	unsigned ended, untold, refused;
	unsigned beyond; /* Requests that were told more than their node's limit allows. */
	double second_j,
		highest_w; /* Power of all nodes; |highest_w| after FIRST_S, in which the curves are learned. */
};

#define FIRST_S 25

static void row_add(struct energy_load *l, const struct job *j, int streams, int prompts)
{
	l->streams = (uint32_t)((int)l->streams + streams);
	l->prompts = (uint32_t)((int)l->prompts + prompts);
	l->prompt_tokens = (uint64_t)((int64_t)l->prompt_tokens + prompts * (int)j->tokens);
	l->wholes = (uint32_t)((int)l->wholes + (j->whole ? prompts : 0));
	l->whole_us += j->whole && prompts > 0 ? j->ticket.prompt_us : 0;
}

static void agent_counts(struct sim *s, const struct job *j, int streams, int prompts)
{
	struct sim_node *n = &s->node[j->slot];
	row_add(&n->all, j, streams, prompts);
	row_add(&n->of[j->router], j, streams, prompts);
	energy_meter_load(&n->meter, &n->all, s->now);
	n->is_due = true;
}

static const struct energy_curve *curve_of(const struct traffic *t)
{
	return t->curve != NULL ? t->curve : &real;
}

/* Ask for a node. False: the budget has no room. */
static bool job_begin(struct sim *s, int router)
{
	struct job *j = s->job;
	while (j < s->job + MOST && j->here != NOBODY)
		j++;
	if (j == s->job + MOST)
		return false;
	struct world *w = &s->w[router];
	struct chooser_ask ask = ask_of(w);
	for (size_t i = 0; i < BLOCKS; i++)
		w->chain[i] = block_fingerprint(s->now + i + (uint64_t)(j - s->job) * 1000, 7);
	ask.blocks = 1 + (size_t)(any_share() * (BLOCKS - 1));
	ask.whole = any_share() < s->t->whole;
	ask.now = s->now;
	struct chooser_pick_result p = chooser_pick(w->chooser, &ask);
	if (p.verdict == ROUTE_FULL && s->t->budget_w > 0) {
		s->refused += p.ask.never_w > 0;
		return false;
	}
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_true(chooser_claim(w->chooser, &ask, &p));
	*j = (struct job){.there = SENT,
		.here = WAITS,
		.router = router,
		.whole = ask.whole,
		.slot = p.cands[p.index].slot};
	chooser_book(w->chooser, &ask, &p, &j->ticket);
	j->tokens = j->ticket.new_tokens;
	j->begin_at = s->now + WAY;
	j->first_at = j->begin_at + 1 + (cgn_nsec)(s->t->prompt_s * 2e9 * (double)ask.blocks / BLOCKS);
	j->end_at = j->first_at + (cgn_nsec)(s->t->answer_s * 1e9 * (0.2 + 1.6 * any_share()));
	return true;
}

static void engine_step(struct sim *s, struct job *j)
{
	struct sim_node *n = &s->node[j->slot];
	if (j->there == SENT && s->now >= j->begin_at) {
		n->true_prompts++;
		agent_counts(s, j, 0, 1);
		j->there = PROMPT;
	}
	if (j->there == PROMPT && s->now >= j->first_at) {
		n->true_prompts--;
		n->true_streams++;
		if (!j->whole)
			agent_counts(s, j, 1, -1);
		j->there = ANSWER;
	}
	if (j->there == ANSWER && s->now >= j->end_at) {
		n->true_streams--;
		if (j->whole) /* The first byte comes with the last. */
			agent_counts(s, j, 1, -1);
		agent_counts(s, j, -1, 0);
		j->there = FREE;
	}
}

static void router_step(struct sim *s, struct job *j)
{
	struct chooser *c = s->w[j->router].chooser;
	cgn_nsec first = j->whole ? j->end_at : j->first_at;
	if (j->here == WAITS && s->now >= first + WAY) {
		chooser_begun(c, &j->ticket, s->now);
		j->here = READS;
	}
	if (j->here != READS || s->now < j->end_at + WAY)
		return;
	chooser_release(c, &j->ticket, s->now);
	struct chooser_energy e = chooser_joules(c, &j->ticket, s->now);
	s->told_j += e.prefill_j + e.decode_j;
	s->ended++;
	s->beyond += e.prefill_j + e.decode_j > LIMIT_W * (double)(s->now - j->ticket.at) * 1e-9;
	s->untold += !(e.prefill_j + e.decode_j > 0);
	j->here = NOBODY;
}

static uint32_t all_of(const struct energy_load *l)
{
	return l->streams + l->prompts;
}

static void agent_tells(struct sim *s, uint32_t slot)
{
	struct sim_node *n = &s->node[slot];
	const struct energy_sums sums = energy_meter_sums(&n->meter, s->now);
	for (int r = 0; r < s->t->routers; r++) {
		const struct energy_load *yours = &n->of[r], *all = &n->all;
		n->report[r] = (struct energy_report){.sums = {sums.stream_j, sums.token_j, s->now},
			.scale = n->meter.scale,
			.pace = energy_meter_pace(&n->meter),
			.others = {.streams = all->streams - yours->streams,
				.prompts = all->prompts - yours->prompts,
				.prompt_tokens = all->prompt_tokens - yours->prompt_tokens,
				.wholes = all->wholes - yours->wholes,
				.prompt_s = n->meter.load.prompt_s}};
	}
	n->told_at = s->now;
	n->is_due = false;
	n->is_on_its_way = true;
}

/* A router does not know how long the report took. */
static void report_arrives(struct sim *s, uint32_t slot)
{
	struct sim_node *n = &s->node[slot];
	n->is_on_its_way = false;
	for (int r = 0; r < s->t->routers; r++) {
		n->report[r].sums.at = s->now;
		energy_board_set(s->board[r], slot, &n->meter.model.curve, 0);
		energy_board_measured(s->board[r], slot,
			&(struct energy_measured){.node_w = n->meter.counted_w,
				.counted_w = n->meter.counted_w,
				.short_w = n->meter.short_w},
			s->now);
		energy_board_sums(s->board[r], slot, &n->report[r]);
	}
}

static void node_step(struct sim *s, uint32_t slot)
{
	struct sim_node *n = &s->node[slot];
	const struct energy_curve *c = curve_of(s->t);
	double watts = n->true_prompts > 0 && energy_known(c)
		? (double)c->prefill
		: energy_decode_watts(c, n->true_streams + n->true_prompts);
	n->true_j += watts * (double)STEP * 1e-9;
	s->second_j += watts * (double)STEP * 1e-9;
	cgn_nsec quiet = s->now - n->told_at;
	bool reads = s->now - n->read_at >= CGN_SEC;
	if (reads) {
		energy_meter_counted(&n->meter, n->true_j - n->read_j, (double)(s->now - n->read_at) * 1e-9,
			s->now);
		n->read_j = n->true_j;
		n->read_at = s->now;
	}
	if (reads || (n->is_due && quiet >= TELL_SOON) || (all_of(&n->all) > 0 && quiet >= TELL_BUSY))
		agent_tells(s, slot);
	if (n->is_on_its_way && s->now - n->told_at >= WAY)
		report_arrives(s, slot);
}

static int jobs_there(const struct sim *s)
{
	int n = 0;
	for (size_t i = 0; i < MOST; i++)
		n += s->job[i].here != NOBODY;
	return n;
}

/* Clients that wait ask again, as the queue does. */
static void clients_step(struct sim *s)
{
	for (int i = jobs_there(s); i < s->t->clients; i++)
		if (!job_begin(s, 0))
			return;
}

static void arrivals_step(struct sim *s)
{
	if (s->now < s->next)
		return;
	if (s->t->clients > 0) {
		bool pause = s->t->burst > 0 && (s->now / CGN_SEC) % (cgn_nsec)s->t->burst >= 3;
		if (!pause)
			clients_step(s);
		return;
	}
	for (int i = 0; i < s->t->burst; i++)
		(void)job_begin(s, (int)(any_share() * s->t->routers));
	s->next = s->now + (cgn_nsec)(s->t->gap_s * 1e9 * (s->t->steady ? 1 : -log(1 - any_share())));
}

static void sim_open(struct sim *s, const struct traffic *t)
{
	*s = (struct sim){.t = t, .now = 100 * CGN_SEC, .next = 105 * CGN_SEC};
	for (int r = 0; r < t->routers; r++) {
		struct world *w = &s->w[r];
		world_of(w, t->nodes, MOST, ROUTE_LEAST_LOADED);
		w->rules.max_inflight = MOST;
		w->rules.energy =
			(struct route_energy){.mode = t->budget_w > 0 ? ROUTE_ENERGY_ON : ROUTE_ENERGY_OFF,
				.budget_w = t->budget_w};
		s->board[r] = energy_board_new(ROUTE_MAX_NODES);
		w->shared.energy = s->board[r];
		chooser_free(&w->chooser);
		assert_true(cgn_ok(chooser_new(&w->shared, 0, &w->chooser, NULL)));
	}
	for (int i = 0; i < t->nodes; i++) {
		energy_meter_init(&s->node[i].meter, t->curve != NULL ? t->limit_w : LIMIT_W, s->now);
		s->node[i].read_at = s->node[i].told_at = s->now;
	}
}

static void sim_close(struct sim *s)
{
	for (int r = 0; r < s->t->routers; r++) {
		world_fini(&s->w[r]);
		energy_board_free(&s->board[r]);
	}
}

static void second_end(struct sim *s, cgn_nsec first)
{
	if (s->now % CGN_SEC != 0)
		return;
	if (s->now >= first + FIRST_S * CGN_SEC && s->second_j > s->highest_w)
		s->highest_w = s->second_j;
	s->second_j = 0;
}

/* Let |seconds| of traffic pass, and the last requests end. */
static void sim_run(struct sim *s, double seconds)
{
	cgn_nsec first = s->now, until = s->now + (cgn_nsec)(seconds * 1e9), end = until + 120 * CGN_SEC;
	for (; s->now < end; s->now += STEP) {
		second_end(s, first);
		if (s->now < until)
			arrivals_step(s);
		for (size_t i = 0; i < MOST; i++)
			engine_step(s, &s->job[i]);
		for (size_t i = 0; i < MOST; i++)
			router_step(s, &s->job[i]);
		for (uint32_t i = 0; i < (uint32_t)s->t->nodes; i++)
			node_step(s, i);
	}
}

static double share_off(double is, double want)
{
	return want > 0 ? is / want - 1 : 1;
}

static void traffic_adds_up(const struct traffic *t)
{
	struct sim s;
	double given = 0, idle = 0, counted = 0;
	seed = 88172645463325252ULL;
	sim_open(&s, t);
	sim_run(&s, t->gap_s > 5 ? 1500 : 300);
	for (int i = 0; i < t->nodes; i++) {
		const struct energy_sums sums = energy_meter_sums(&s.node[i].meter, s.now);
		given += sums.prefill_j + sums.decode_j;
		idle += sums.idle_j;
		counted += s.node[i].true_j;
	}
	double off = share_off(s.told_j, given), all = share_off(s.told_j + idle, counted);
	print_message(
		"%-36s %4u requests %6.0f J, off by %+5.2f %% of the meters, %+5.2f %% of the counters\n",
		t->name, s.ended, s.told_j, 100 * off, 100 * all);
	if (!(fabs(off) < MOST_OFF && fabs(all) < MOST_OFF) || s.untold * 200 > s.ended || s.beyond > 0)
		fail_msg(
			"%s: %g J told, meters gave %g, %g idle of %g counted; of %u %u have none, %u too much",
			t->name, s.told_j, given, idle, counted, s.ended, s.untold, s.beyond);
	sim_close(&s);
}

static const struct traffic kinds[] = {
	{"whole, 0.5 s apart", 1, 1, 0.5, true, 1, 1, 0.05, 0.1},
	{"streamed, 0.5 s apart", 1, 1, 0.5, true, 1, 0, 0.05, 0.1},
	{"whole, tiny", 1, 1, 0.1, false, 1, 1, 0.004, 0.01},
	{"streamed, tiny", 1, 1, 0.1, false, 1, 0, 0.004, 0.01},
	{"whole, busy", 1, 1, 0.3, false, 1, 1, 0.2, 2},
	{"streamed, busy", 1, 1, 0.3, false, 1, 0, 0.2, 2},
	{"mixed, busy", 1, 1, 0.3, false, 1, 0.5, 0.2, 2},
	{"mixed, long prompts", 1, 1, 1, false, 1, 0.5, 1, 1},
	{"whole, bursts of 8", 1, 1, 6, false, 8, 1, 0.2, 1},
	{"streamed, bursts of 8", 1, 1, 6, false, 8, 0, 0.2, 1},
	{"mixed, bursts of 8, one router of two", 1, 2, 6, false, 8, 0.5, 0.2, 1},
	{"mixed, 2 s apart", 1, 1, 2, false, 1, 0.5, 0.1, 0.3},
	{"mixed, 10 s apart", 1, 1, 10, false, 1, 0.5, 0.1, 0.3},
	{"whole, 30 s apart", 1, 1, 30, true, 1, 1, 0.1, 0.3},
	{"streamed, 30 s apart", 1, 1, 30, true, 1, 0, 0.1, 0.3},
	{"whole, 30 s apart, long", 1, 1, 30, true, 1, 1, 0.5, 8},
	{"mixed, four nodes", 4, 1, 0.1, false, 1, 0.5, 0.2, 2},
	{"mixed, four nodes, two routers", 4, 2, 0.1, false, 1, 0.5, 0.2, 2},
	{"whole, alone, long prompts", 1, 1, 1.7, true, 1, 1, 0.3, 0.1},
	{"streamed, alone, long prompts", 1, 1, 1.7, true, 1, 0, 0.3, 0.1},
	{"mixed, alone, long prompts", 1, 1, 1.2, true, 1, 0.5, 0.3, 0.1},
	{"whole, four nodes, two routers", 4, 2, 0.2, false, 1, 1, 0.2, 1},
	{"streamed, four nodes, two routers", 4, 2, 0.2, false, 1, 0, 0.2, 1},
};

static void joules_told_add_up(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(kinds); i++)
		traffic_adds_up(&kinds[i]);
}

static void budget_holds(const struct traffic *t)
{
	struct sim s;
	double most = t->highest_w > 0 ? t->highest_w : t->budget_w * 1.05;
	seed = 88172645463325252ULL;
	sim_open(&s, t);
	sim_run(&s, 120);
	print_message("%-36s %4u requests, %5u refused, highest second %4.0f W of %4.0f W\n", t->name,
		s.ended, s.refused, s.highest_w, t->budget_w);
	if (s.highest_w > most || s.ended < t->least || (t->least == 0 && s.refused == 0))
		fail_msg("%s: %g W with a budget of %g W, %u answered, %u refused", t->name, s.highest_w,
			t->budget_w, s.ended, s.refused);
	sim_close(&s);
}

#define CPU &cpu, 700
#define GPU &real, 700
static const struct traffic budgets[] = {
	{"200 W: never", 1, 1, 0, false, 0, 1, 0.02, 1, CPU, 200, 0, 4, 0},
	{"300 W, whole, 4 clients", 1, 1, 0, false, 0, 1, 0.02, 1, CPU, 300, 0, 4, 70},
	{"300 W, whole, 8 clients", 1, 1, 0, false, 0, 1, 0.02, 1, CPU, 300, 0, 8, 70},
	{"300 W, streamed, 8 clients", 1, 1, 0, false, 0, 0, 0.02, 1, CPU, 300, 0, 8, 70},
	{"300 W, mixed, bursts", 1, 1, 0, false, 10, 0.5, 0.02, 1, CPU, 300, 0, 8, 20},
	{"400 W, whole, 8 clients", 1, 1, 0, false, 0, 1, 0.02, 1, CPU, 400, 0, 8, 400},
	{"400 W, streamed, 8 clients", 1, 1, 0, false, 0, 0, 0.02, 1, CPU, 400, 0, 8, 400},
	{"400 W, mixed, bursts", 1, 1, 0, false, 10, 0.5, 0.02, 1, CPU, 400, 0, 8, 120},
	{"400 W, whole, no limit known", 1, 1, 0, false, 0, 1, 0.02, 1, &cpu, 0, 400, 0, 8, 400},
	{"600 W, whole, two nodes", 2, 1, 0, false, 0, 1, 0.02, 1, CPU, 600, 0, 8, 150},
	{"GPU, 500 W, whole", 1, 1, 0, false, 0, 1, 0.02, 1, GPU, 500, 0, 16, 400},
	/* Only whole answers: how long a prompt takes is a guess, which is too low here. */
	{"GPU, 500 W, long prompts, whole", 1, 1, 0, false, 0, 1, 0.3, 1, GPU, 500, 550, 8, 50},
	{"GPU, 500 W, long prompts, streamed", 1, 1, 0, false, 0, 0, 0.3, 1, GPU, 500, 0, 8, 50},
	{"GPU, 1200 W, four nodes, mixed", 4, 1, 0, false, 0, 0.5, 0.1, 1, GPU, 1200, 0, 32, 400},
};

static void measured_power_stays_within_the_budget(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(budgets); i++)
		budget_holds(&budgets[i]);
}

/* A report says that a token had a joule, which meant another request's: this one has 100 times as many tokens. */
static void no_request_is_told_more_than_its_node_can_draw(void **state)
{
	(void)state;
	const struct traffic one = {"one", .nodes = 1, .routers = 1, .gap_s = 1, .prompt_s = 0.3,
		.answer_s = 0.1};
	struct sim s;
	seed = 88172645463325252ULL;
	sim_open(&s, &one);
	sim_run(&s, 10);
	assert_true(job_begin(&s, 0));
	struct job *j = s.job;
	assert_true(j->tokens > 100);
	s.now += 100 * CGN_MSEC;
	struct energy_report r = s.node[0].report[0];
	r.sums.token_j += 1;
	r.sums.at = s.now;
	energy_board_sums(s.board[0], 0, &r);
	s.now += 100 * CGN_MSEC;
	chooser_release(s.w[0].chooser, &j->ticket, s.now);
	const struct chooser_energy e = chooser_joules(s.w[0].chooser, &j->ticket, s.now + CGN_SEC);
	assert_true(e.prefill_j > 0 && e.prefill_j + e.decode_j <= LIMIT_W * 0.2);
	sim_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(joules_told_add_up),
		cmocka_unit_test(no_request_is_told_more_than_its_node_can_draw),
		cmocka_unit_test(measured_power_stays_within_the_budget)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
