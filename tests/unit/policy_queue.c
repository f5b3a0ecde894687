/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/route/queue/queue.h"

static struct queue *queue_of(enum queue_policy policy, size_t max)
{
	struct queue *q = queue_new(&(struct queue_rules){policy, max});
	return q;
}

static struct queue_item item_of(const char *tenant, unsigned priority, uint32_t tokens, cgn_nsec arrived)
{
	return (struct queue_item){.tenant = cgn_str_of(tenant),
		.priority = priority,
		.new_tokens = tokens,
		.arrived = arrived};
}

static void put_item(struct queue *q, struct queue_item *it)
{
	struct queue_item *out = NULL;
	assert_int_equal(queue_put(q, it, &out), QUEUE_PUT);
}

static struct queue_item *take_item(struct queue *q, cgn_nsec now)
{
	struct queue_item *out = NULL;
	return queue_take(q, now, &out) == QUEUE_GO ? out : NULL;
}

static void first_come_first_served(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 8);
	struct queue_item it[3] = {item_of("-", 5, 900, 1), item_of("-", 5, 1, 2), item_of("-", 5, 50, 3)};
	for (int i = 0; i < 3; i++)
		put_item(q, &it[i]);
	assert_int_equal(queue_len(q), 3);
	assert_int_equal(queue_tokens(q), 951);
	assert_int_equal(queue_ahead(q, &it[2]), 2);
	for (int i = 0; i < 3; i++)
		assert_ptr_equal(take_item(q, 10), &it[i]);
	assert_null(take_item(q, 10));
	assert_int_equal(queue_tokens(q), 0);
	queue_free(&q);
}

static void wspt_takes_the_shortest_and_ages(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_WSPT, 8);
	struct queue_item it[4] = {item_of("-", 5, 4000, 0), item_of("-", 5, 100, 1),
		item_of("-", 5, 1000, 2), item_of("-", 5, 1000000, 3)};
	struct queue_item young = item_of("-", 5, 1, QUEUE_PATIENCE + 4);
	for (int i = 0; i < 4; i++)
		put_item(q, &it[i]);
	put_item(q, &young);
	assert_int_equal(queue_ahead(q, &it[0]), 2);
	assert_ptr_equal(take_item(q, 10), &it[1]);
	assert_ptr_equal(take_item(q, 10), &it[2]);
	assert_ptr_equal(take_item(q, 10), &it[0]);
	/* The item arrived more than the patience before the young one. */
	assert_ptr_equal(take_item(q, 10), &it[3]);
	assert_ptr_equal(take_item(q, 10), &young);
	queue_free(&q);
}

static void sessions_that_used_little_go_first_and_others_age(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_SESSIONS, 8);
	struct queue_item greedy = item_of("-", 5, 10, 0), modest = item_of("-", 5, 900, 2),
			  fresh = item_of("-", 5, 10, 3);
	struct queue_item late = item_of("-", 5, 10, QUEUE_SERVED_PATIENCE + 4);
	greedy.attained = 4000000000U;
	modest.attained = 1000;
	struct queue_item *all[] = {&greedy, &modest, &fresh, &late};
	for (int i = 0; i < 4; i++)
		put_item(q, all[i]);
	assert_ptr_equal(take_item(q, 10), &fresh);
	assert_ptr_equal(take_item(q, 10), &modest);
	assert_ptr_equal(take_item(q, 10),
		&greedy); /* The greedy item is older than the last one by more than the patience. */
	assert_ptr_equal(take_item(q, 10), &late);
	queue_free(&q);
}

static void deadline_takes_the_earliest_and_puts_off_the_hopeless(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_DEADLINE, 8);
	struct queue_item a = item_of("-", 5, 1, 0), b = a, late = a, none = a, firm = a;
	struct queue_item *out = NULL;
	a.deadline = 4 * CGN_SEC;
	b.deadline = 3 * CGN_SEC;
	late.deadline = CGN_SEC;
	firm.deadline = CGN_SEC + 1;
	firm.firm = true;
	struct queue_item *all[] = {&a, &b, &late, &none, &firm};
	for (int i = 0; i < 5; i++)
		put_item(q, all[i]);
	cgn_nsec now = 2 * CGN_SEC;
	assert_int_equal(queue_take(q, now, &out), QUEUE_LATE);
	assert_ptr_equal(out, &firm);
	assert_ptr_equal(take_item(q, now), &b);
	assert_ptr_equal(take_item(q, now), &a);
	assert_ptr_equal(take_item(q, now), &none); /* 10 s after its arrival. */
	assert_ptr_equal(take_item(q, now), &late);
	queue_free(&q);
}

static void a_firm_deadline_counts_what_is_still_needed(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 8);
	struct queue_item it = item_of("-", 5, 1, 0), *out = NULL;
	it.deadline = 5 * CGN_SEC;
	it.need = 2 * CGN_SEC;
	it.firm = true;
	put_item(q, &it);
	assert_int_equal(queue_take(q, 3 * CGN_SEC + 1, &out), QUEUE_LATE);
	put_item(q, &it);
	assert_int_equal(queue_take(q, 3 * CGN_SEC, &out), QUEUE_GO);
	queue_return(q, &it);
	assert_int_equal(queue_take(q, 4 * CGN_SEC, &out), QUEUE_LATE);
	queue_free(&q);
}

static void priorities_are_strict_until_age_counts(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 8);
	struct queue_item low = item_of("-", QUEUE_LOW, 1, 0), normal = item_of("-", QUEUE_NORMAL, 1, 1),
			  high = item_of("-", QUEUE_HIGH, 1, 2);
	put_item(q, &low);
	put_item(q, &normal);
	put_item(q, &high);
	assert_int_equal(queue_ahead(q, &low), 2);
	assert_ptr_equal(take_item(q, 3), &high);
	/* Too young now to pass the normal one. */
	high.arrived = (QUEUE_HIGH - QUEUE_NORMAL) * QUEUE_STEP + 2;
	put_item(q, &high);
	assert_ptr_equal(take_item(q, 3), &normal);
	high.arrived = (QUEUE_HIGH - QUEUE_LOW) * QUEUE_STEP + 1;
	queue_drop(q, &high);
	queue_drop(q, &high);
	put_item(q, &high);
	assert_ptr_equal(take_item(q, 3), &low);
	assert_ptr_equal(take_item(q, 3), &high);
	queue_free(&q);
}

/* The stated bound of step 1: no item that arrived (priority difference * QUEUE_STEP) later is served before
 * it, whatever keeps arriving. */
static void nothing_starves_under_a_flood_of_high_priority(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_WSPT, 4096);
	struct queue_item poor = item_of("poor", 0, 100000, 0);
	struct queue_item *flood = calloc(4096, sizeof *flood);
	size_t n = 0;
	cgn_nsec now = 0;
	bool served = false;
	assert_non_null(flood);
	put_item(q, &poor);
	while (!served && n < 4096) { /* Two arrive and one leaves every 50 ms. */
		for (int i = 0; i < 2; i++) {
			flood[n] = item_of("rich", 9, 10, now);
			put_item(q, &flood[n++]);
		}
		struct queue_item *it = take_item(q, now);
		cgn_nsec came = it != NULL ? it->arrived : UINT64_MAX;
		served = it == &poor;
		assert_true(came <= 9 * QUEUE_STEP);
		now += 50 * CGN_MSEC;
	}
	assert_true(served);
	queue_free(&q);
	free(flood);
}

/* ---- fairness ---- */

struct tenant {
	const char *name;
	uint32_t weight, cost;
	uint64_t served;
};

static void fair_rounds(struct tenant *t, size_t n, size_t takes)
{
	struct queue *q = queue_of(QUEUE_FCFS, 1024);
	struct queue_item *items = calloc(n * 4, sizeof *items);
	assert_non_null(items);
	for (size_t i = 0; i < n * 4; i++) { /* Each tenant always has waiting items. */
		items[i] = item_of(t[i / 4].name, 5, t[i / 4].cost / 2, i);
		items[i].answer_tokens = t[i / 4].cost - t[i / 4].cost / 2;
		items[i].weight = t[i / 4].weight;
		put_item(q, &items[i]);
	}
	for (size_t k = 0; k < takes; k++) {
		struct queue_item *it = take_item(q, k);
		size_t i = (size_t)(it - items) / 4;
		t[i].served += t[i].cost;
		put_item(q, it);
		for (size_t a = 0; a < n; a++)
			for (size_t b = 0; b < n; b++) {
				double d =
					(double)t[a].served / t[a].weight - (double)t[b].served / t[b].weight;
				assert_true(d <= QUEUE_QUANTUM + (double)QUEUE_MAX_COST / t[a].weight +
						(double)QUEUE_MAX_COST / t[b].weight);
				/* With these costs the difference is much smaller. */
				assert_true(d <= 2 * QUEUE_QUANTUM + (double)t[a].cost + (double)t[b].cost);
			}
	}
	queue_free(&q);
	free(items);
}

static void tenants_share_by_tokens_and_weights(void **state)
{
	(void)state;
	struct tenant equal[] = {{"a", 1, 300, 0}, {"b", 1, 3000, 0}, {"c", 1, 20000, 0}};
	fair_rounds(equal, 3, 4000);
	double total = (double)(equal[0].served + equal[1].served + equal[2].served);
	for (int i = 0; i < 3; i++)
		assert_true((double)equal[i].served > 0.3 * total && (double)equal[i].served < 0.37 * total);
	struct tenant weighted[] = {{"a", 1, 1000, 0}, {"b", 3, 1000, 0}};
	fair_rounds(weighted, 2, 4000);
	double share = (double)weighted[1].served / (double)(weighted[0].served + weighted[1].served);
	assert_true(share > 0.74 && share < 0.76);
}

static void idleness_is_not_saved_up(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 64);
	struct queue_item a[8], b[8];
	for (int i = 0; i < 8; i++)
		a[i] = item_of("a", 5, QUEUE_QUANTUM, (cgn_nsec)i);
	for (int i = 0; i < 8; i++)
		b[i] = item_of("b", 5, QUEUE_QUANTUM, (cgn_nsec)i);
	for (int i = 0; i < 4; i++) { /* A tenant is alone for a while. */
		put_item(q, &a[i]);
		assert_ptr_equal(take_item(q, 0), &a[i]);
	}
	for (int i = 0; i < 8; i++)
		put_item(q, &b[i]);
	for (int i = 0; i < 4; i++)
		put_item(q, &a[i]);
	for (int i = 0; i < 4; i++) {
		assert_ptr_equal(take_item(q, 0), &b[i]);
		assert_ptr_equal(take_item(q, 0), &a[i]);
	}
	queue_free(&q);
}

/* ---- full ---- */

static void a_full_queue_displaces_the_largest_lowest_tenant(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 4);
	struct queue_item a[4], b = item_of("b", 5, 1, 9), b2 = b, b3 = b, high = item_of("a", 8, 1, 9),
				low = item_of("c", 2, 1, 9), *out = NULL;
	for (int i = 0; i < 4; i++) {
		a[i] = item_of("a", 5, 1, (cgn_nsec)i);
		put_item(q, &a[i]);
	}
	assert_int_equal(queue_put(q, &low, &out), QUEUE_FULL);
	assert_int_equal(queue_put(q, &b, &out), QUEUE_PUT_FOR);
	assert_ptr_equal(out, &a[3]); /* The newest item of a. */
	assert_int_equal(queue_put(q, &a[3], &out), QUEUE_FULL);
	assert_int_equal(queue_put(q, &b2, &out), QUEUE_PUT_FOR);
	assert_ptr_equal(out, &a[2]);
	assert_int_equal(queue_put(q, &b3, &out), QUEUE_FULL); /* Both tenants have two. */
	assert_int_equal(queue_put(q, &high, &out), QUEUE_PUT_FOR);
	assert_int_equal(queue_len(q), 4);
	assert_false(queue_has(out));
	assert_true(queue_has(&high));
	queue_free(&q);
	assert_false(queue_has(&high));
	q = queue_of(QUEUE_FCFS, 0);
	assert_int_equal(queue_put(q, &b, &out), QUEUE_FULL);
	queue_free(&q);
}

static void what_found_no_room_goes_first(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 1);
	struct queue_item a = item_of("a", 0, 1, 0), b = item_of("a", 9, 1, 1), *out = NULL;
	put_item(q, &a);
	assert_ptr_equal(take_item(q, 0), &a);
	put_item(q, &b);
	queue_return(q, &a); /* Beyond the limit. */
	assert_int_equal(queue_len(q), 2);
	assert_int_equal(queue_ahead(q, &b), 1);
	assert_int_equal(queue_put(q, &(struct queue_item){.tenant = CGN_STR("x")}, &out), QUEUE_FULL);
	assert_ptr_equal(take_item(q, 0), &a);
	queue_return(q, &a);
	queue_drop(q, &a);
	assert_ptr_equal(take_item(q, 0), &b);
	assert_int_equal(queue_len(q), 0);
	queue_free(&q);
}

static void shares_add(void *user, const struct queue_share *s)
{
	size_t *sums = user;
	sums[0] += s->items;
	sums[1] += s->tokens;
	sums[2]++;
}

static void a_change_of_policy_sorts_again(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 8);
	struct queue_item a = item_of("-", 5, 1000, 0), b = item_of("-", 5, 1, 1), c = item_of("t", 5, 1, 2);
	size_t sums[3] = {0};
	put_item(q, &a);
	put_item(q, &b);
	put_item(q, &c);
	queue_each(q, shares_add, sums);
	assert_int_equal(sums[0], 3);
	assert_int_equal(sums[1], 1002);
	assert_int_equal(sums[2], 2);
	queue_tune(q, &(struct queue_rules){QUEUE_WSPT, 2});
	assert_int_equal(queue_len(q), 3);
	assert_ptr_equal(take_item(q, 0), &b);
	queue_free(&q);
}

/* ---- against a model that is too simple to be wrong ---- */

#define MANY 96
static const char *const names[] = {"a", "b", "c", "d"};

struct model {
	bool in[MANY];
	uint64_t seq[MANY], next;
	struct {
		char tenant[4];
		uint64_t deficit;
		bool on_turn;
	} ring[QUEUE_PRIORITIES][CGN_COUNT(names)];
	size_t n_ring[QUEUE_PRIORITIES];
};

static cgn_nsec model_key(enum queue_policy policy, const struct queue_item *it)
{
	cgn_nsec work = it->new_tokens * QUEUE_TOKEN;
	if (policy == QUEUE_FCFS)
		return it->arrived;
	if (policy == QUEUE_WSPT)
		return it->arrived + (work < QUEUE_PATIENCE ? work : QUEUE_PATIENCE);
	return it->deadline != 0 ? it->deadline : it->arrived + QUEUE_PATIENCE;
}

static int model_best(const struct model *m, enum queue_policy policy, const struct queue_item *it,
	unsigned p, const char *tenant)
{
	int best = -1;
	for (int i = 0; i < MANY; i++) {
		if (!m->in[i] || it[i].priority != p || !cgn_str_is(it[i].tenant, tenant))
			continue;
		if (best < 0 || model_key(policy, &it[i]) < model_key(policy, &it[best]) ||
			(model_key(policy, &it[i]) == model_key(policy, &it[best]) &&
				m->seq[i] < m->seq[best]))
			best = i;
	}
	return best;
}

static void model_put(struct model *m, const struct queue_item *it, int i)
{
	unsigned p = it[i].priority;
	m->in[i] = true;
	m->seq[i] = m->next++;
	for (size_t r = 0; r < m->n_ring[p]; r++)
		if (cgn_str_is(it[i].tenant, m->ring[p][r].tenant))
			return;
	(void)cgn_str_copyz(m->ring[p][m->n_ring[p]].tenant, 4, it[i].tenant);
	m->ring[p][m->n_ring[p]].deficit = 0;
	m->ring[p][m->n_ring[p]++].on_turn = false;
}

static void model_drop(struct model *m, const struct queue_item *it, int i)
{
	unsigned p = it[i].priority;
	m->in[i] = false;
	for (size_t r = 0; r < m->n_ring[p]; r++) {
		if (!cgn_str_is(it[i].tenant, m->ring[p][r].tenant) ||
			model_best(m, QUEUE_FCFS, it, p, m->ring[p][r].tenant) >= 0)
			continue;
		memmove(&m->ring[p][r], &m->ring[p][r + 1], (m->n_ring[p] - r - 1) * sizeof m->ring[p][0]);
		m->n_ring[p]--;
		return;
	}
}

static int model_take(struct model *m, enum queue_policy policy, const struct queue_item *it)
{
	int oldest = -1, got = -1;
	cgn_nsec least = 0;
	for (int p = QUEUE_PRIORITIES - 1; p >= 0; p--) {
		int first = -1;
		for (int i = 0; i < MANY; i++)
			if (m->in[i] && it[i].priority == (unsigned)p &&
				(first < 0 || m->seq[i] < m->seq[first]))
				first = i;
		if (first < 0)
			continue;
		cgn_nsec key = it[first].arrived + (cgn_nsec)(QUEUE_PRIORITIES - 1 - p) * QUEUE_STEP;
		if (oldest < 0 || key < least) {
			oldest = p;
			least = key;
		}
	}
	while (oldest >= 0 && got < 0) {
		unsigned p = (unsigned)oldest;
		if (!m->ring[p][0].on_turn)
			m->ring[p][0].deficit += QUEUE_QUANTUM;
		m->ring[p][0].on_turn = true;
		int i = model_best(m, policy, it, p, m->ring[p][0].tenant);
		uint64_t cost = it[i].new_tokens + it[i].answer_tokens;
		cost = cost < QUEUE_QUANTUM ? QUEUE_QUANTUM : cost < QUEUE_MAX_COST ? cost : QUEUE_MAX_COST;
		if (m->ring[p][0].deficit >= cost) {
			m->ring[p][0].deficit -= cost;
			got = i;
			break;
		}
		m->ring[p][0].on_turn = false;
		for (size_t r = 0; r + 1 < m->n_ring[p]; r++) { /* Append to the ring. */
			__typeof__(m->ring[0][0]) swap = m->ring[p][r];
			m->ring[p][r] = m->ring[p][r + 1];
			m->ring[p][r + 1] = swap;
		}
	}
	if (got >= 0)
		model_drop(m, it, got);
	return got;
}

static void agrees_with_the_model(enum queue_policy policy, uint64_t seed)
{
	struct queue *q = queue_of(policy, MANY);
	struct model *m = calloc(1, sizeof *m);
	struct queue_item it[MANY] = {0}, *out = NULL;
	cgn_nsec now = CGN_SEC;
	assert_non_null(m);
	for (int step = 0; step < 4000; step++) {
		uint64_t dice = mix_splitmix(&seed);
		int i = (int)(dice >> 8) % MANY;
		i = i < 0 ? -i : i;
		now += dice % 7 * 100 * CGN_MSEC;
		if (dice % 100 < 55 && !m->in[i]) {
			it[i] = item_of(names[dice >> 20 & 3], (unsigned)(dice >> 24 & 3) * 3,
				(uint32_t)(dice >> 30 & 0x3fff), now);
			it[i].answer_tokens = (uint32_t)(dice >> 46 & 0x3ff);
			it[i].deadline = (dice >> 60 & 1) != 0
				? now + 3600 * CGN_SEC + (dice >> 40 & 0xff) * CGN_SEC
				: 0;
			put_item(q, &it[i]);
			model_put(m, it, i);
		} else if (dice % 100 < 65 && m->in[i]) {
			queue_drop(q, &it[i]);
			model_drop(m, it, i);
		} else if (dice % 100 >= 65) {
			int want = model_take(m, policy, it);
			assert_int_equal(queue_take(q, now, &out), want < 0 ? QUEUE_NONE : QUEUE_GO);
			assert_true(want < 0 || out == &it[want]);
		}
		size_t n = 0, sums[3] = {0};
		for (int k = 0; k < MANY; k++)
			n += m->in[k];
		queue_each(q, shares_add, sums);
		assert_int_equal(queue_len(q), n);
		assert_int_equal(sums[0], n);
		assert_int_equal(sums[1], queue_tokens(q));
	}
	queue_free(&q);
	free(m);
}

static void random_operations_agree_with_a_naive_model(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		agrees_with_the_model(QUEUE_FCFS, seed);
		agrees_with_the_model(QUEUE_WSPT, seed);
		agrees_with_the_model(QUEUE_DEADLINE, seed);
	}
}

/* ---- drain rate ---- */

static void rate_counts_only_the_time_in_which_items_wait(void **state)
{
	(void)state;
	struct queue_rate p = {0};
	cgn_nsec now = 5 * CGN_SEC;
	assert_false(queue_rate_known(&p));
	queue_rate_start(&p, now);
	for (int i = 0; i < 100; i++)
		queue_rate_count(&p, now += 100 * CGN_MSEC);
	cgn_nsec ten = queue_rate_time(&p, 10, now);
	for (int i = 0; i < 100; i++) { /* Taken and returned: no item left for good. */
		queue_rate_count(&p, now);
		queue_rate_uncount(&p, now);
	}
	assert_true(queue_rate_time(&p, 10, now) + CGN_MSEC > ten &&
		queue_rate_time(&p, 10, now) < ten + CGN_MSEC);
	assert_true(ten > 900 * CGN_MSEC && ten < 1100 * CGN_MSEC);
	queue_rate_stop(&p, now);
	now += 3600 * CGN_SEC;
	queue_rate_start(&p, now);
	assert_true(queue_rate_known(&p) && queue_rate_time(&p, 10, now) == ten);
	/* Nothing leaves any more, so the predicted time grows. */
	assert_true(queue_rate_time(&p, 10, now + 60 * CGN_SEC) > 10 * ten);
	struct queue_rate never = {0};
	queue_rate_start(&never, now);
	assert_true(queue_rate_time(&never, 3, now + 2 * CGN_SEC) == 6 * CGN_SEC);
}

static bool is_not_held_back(void *user, struct cgn_str tenant)
{
	return !cgn_str_is(tenant, user);
}

static void a_tenant_that_may_not_go_is_passed_over(void **state)
{
	(void)state;
	struct queue *q = queue_of(QUEUE_FCFS, 16);
	struct queue_item a[3] = {item_of("a", 9, 10, 1), item_of("a", 5, 10, 2), item_of("a", 5, 10, 3)},
			  b[2] = {item_of("b", 5, 10, 4), item_of("b", 0, 10, 5)};
	char held[] = "a";
	for (int i = 0; i < 3; i++)
		put_item(q, &a[i]);
	for (int i = 0; i < 2; i++)
		put_item(q, &b[i]);
	queue_gate(q, is_not_held_back, held);
	assert_ptr_equal(take_item(q, 10), &b[0]);
	assert_ptr_equal(take_item(q, 10), &b[1]);
	assert_null(take_item(q, 10));
	assert_int_equal(queue_len(q), 3);
	queue_return(q, &b[0]);
	assert_ptr_equal(take_item(q, 10), &b[0]);
	assert_ptr_equal(queue_pull(q), &a[0]);
	assert_null(take_item(q, 10));
	queue_gate(q, NULL, NULL);
	assert_ptr_equal(take_item(q, 10), &a[1]);
	assert_ptr_equal(queue_pull(q), &a[2]);
	assert_null(queue_pull(q));
	queue_free(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_come_first_served),
		cmocka_unit_test(wspt_takes_the_shortest_and_ages),
		cmocka_unit_test(sessions_that_used_little_go_first_and_others_age),
		cmocka_unit_test(deadline_takes_the_earliest_and_puts_off_the_hopeless),
		cmocka_unit_test(a_firm_deadline_counts_what_is_still_needed),
		cmocka_unit_test(priorities_are_strict_until_age_counts),
		cmocka_unit_test(nothing_starves_under_a_flood_of_high_priority),
		cmocka_unit_test(tenants_share_by_tokens_and_weights),
		cmocka_unit_test(idleness_is_not_saved_up),
		cmocka_unit_test(a_full_queue_displaces_the_largest_lowest_tenant),
		cmocka_unit_test(what_found_no_room_goes_first),
		cmocka_unit_test(a_tenant_that_may_not_go_is_passed_over),
		cmocka_unit_test(a_change_of_policy_sorts_again),
		cmocka_unit_test(random_operations_agree_with_a_naive_model),
		cmocka_unit_test(rate_counts_only_the_time_in_which_items_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
