/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/kv/slots/tenancy.h"

#define A 11
#define B 22

static const uint64_t chain_a[] = {1, 2, 3, 4, 5, 6, 7, 8}, chain_b[] = {9, 8, 7, 6, 5, 4, 3, 2};

static struct slot_tenancy *tenancy_of(uint32_t slots)
{
	struct slot_tenancy *t = slot_tenancy_new();
	slot_tenancy_size(t, slots);
	return t;
}

static struct slot_guest guest_in(uint32_t slot, uint64_t owner)
{
	return (struct slot_guest){.owner = owner,
		.chain = owner == A ? chain_a : chain_b,
		.n = 8,
		.slot = slot};
}

/* Send a request and end it; return whether it could use what the slot held. */
static bool guest_visit(struct slot_tenancy *t, uint32_t slot, uint64_t owner, cgn_nsec now)
{
	struct slot_guest g = guest_in(slot, owner);
	bool reuses = slot_tenancy_enter(t, &g, false, now);
	slot_tenancy_leave(t, &g, false, now);
	return reuses;
}

static void a_slot_serves_its_last_owner_alone(void **state)
{
	(void)state;
	struct slot_tenancy *t = tenancy_of(2);
	assert_false(guest_visit(t, 0, A, 1)); /* the agent does not know whose prompt it holds */
	assert_true(guest_visit(t, 0, A, 1));
	assert_false(guest_visit(t, 0, B, 1));
	assert_false(guest_visit(t, 0, A, 1));
	assert_true(guest_visit(t, 0, A, 1));
	assert_false(guest_visit(t, 1, A, 1));
	assert_false(guest_visit(t, 0, 0, 1)); /* no salt is an owner too */
	assert_true(guest_visit(t, 0, 0, 1));
	slot_tenancy_size(t, 2); /* as before */
	assert_true(guest_visit(t, 0, 0, 1));
	slot_tenancy_size(t, 3);
	assert_false(guest_visit(t, 0, 0, 1));
	slot_tenancy_free(&t);
	slot_tenancy_free(&t);
}

static void a_restored_state_is_the_owners(void **state)
{
	(void)state;
	struct slot_tenancy *t = tenancy_of(1);
	struct slot_guest g = guest_in(0, A), other = guest_in(0, B);
	assert_true(slot_tenancy_enter(t, &g, true, 1));
	/* Beside another request of the slot the engine may begin either first. */
	assert_false(slot_tenancy_enter(t, &other, true, 1));
	slot_tenancy_leave(t, &g, false, 1);
	slot_tenancy_leave(t, &other, false, 1);
	assert_false(guest_visit(t, 0, B, 1));
	assert_true(guest_visit(t, 0, B, 1));
	slot_tenancy_free(&t);
}

static void requests_that_wait_for_one_slot_may_change_places(void **state)
{
	(void)state;
	struct slot_tenancy *t = tenancy_of(1);
	assert_false(guest_visit(t, 0, A, 1));
	struct slot_guest a = guest_in(0, A), again = guest_in(0, A), b = guest_in(0, B);
	assert_true(slot_tenancy_enter(t, &a, false, 1));
	assert_true(slot_tenancy_enter(t, &again, false, 1)); /* both are A's */
	assert_false(slot_tenancy_enter(t, &b, false, 1));
	slot_tenancy_leave(t, &b, false, 1);
	/* B may have been first or last. */
	struct slot_guest third = guest_in(0, A);
	assert_false(slot_tenancy_enter(t, &third, false, 1));
	slot_tenancy_leave(t, &a, false, 1);
	slot_tenancy_leave(t, &again, false, 1);
	slot_tenancy_leave(t, &third, false, 1);
	assert_false(guest_visit(t, 0, A, 1));
	assert_true(guest_visit(t, 0, A, 1));
	slot_tenancy_free(&t);
}

static void a_slot_that_the_engine_chooses_makes_all_unknown(void **state)
{
	(void)state;
	struct slot_tenancy *t = tenancy_of(2);
	struct slot_guest stray = guest_in(SLOTS_NONE, B);
	(void)guest_visit(t, 0, A, 1);
	assert_true(guest_visit(t, 0, A, 1));
	assert_false(slot_tenancy_enter(t, &stray, true, 1));
	assert_false(guest_visit(t, 0, A, 1));
	assert_false(guest_visit(t, 0, A, 1)); /* the stray may begin in between */
	slot_tenancy_leave(t, &stray, false, 1);
	assert_false(guest_visit(t, 0, A, 1));
	assert_true(guest_visit(t, 0, A, 1));
	/* Cut off before the engine answered, it may begin later. */
	stray = guest_in(7, B);
	assert_false(slot_tenancy_enter(t, &stray, false, 1));
	assert_int_equal(stray.slot, SLOTS_NONE); /* the engine has no such slot */
	slot_tenancy_leave(t, &stray, true, 5);
	assert_false(guest_visit(t, 0, A, 5));
	assert_false(guest_visit(t, 0, A, 4 + SLOT_TENANCY_CUT));
	assert_false(guest_visit(t, 0, A, 5 + SLOT_TENANCY_CUT));
	assert_true(guest_visit(t, 0, A, 5 + SLOT_TENANCY_CUT));
	slot_tenancy_free(&t);
}

static void a_request_that_was_cut_off_may_begin_later(void **state)
{
	(void)state;
	struct slot_tenancy *t = tenancy_of(2);
	struct slot_guest g = guest_in(0, B);
	(void)guest_visit(t, 1, A, 1);
	(void)slot_tenancy_enter(t, &g, false, 1);
	slot_tenancy_leave(t, &g, true, 1);
	assert_false(guest_visit(t, 0, A, 2));
	assert_false(guest_visit(t, 0, A, SLOT_TENANCY_CUT));
	assert_true(guest_visit(t, 1, A, 2)); /* other slots are not touched */
	assert_false(guest_visit(t, 0, A, 1 + SLOT_TENANCY_CUT));
	assert_true(guest_visit(t, 0, A, 1 + SLOT_TENANCY_CUT));
	/* A request of an engine that is gone ends without an effect. */
	g = guest_in(0, B);
	(void)slot_tenancy_enter(t, &g, false, 1);
	slot_tenancy_size(t, 1);
	slot_tenancy_leave(t, &g, true, 1 + SLOT_TENANCY_CUT);
	(void)guest_visit(t, 0, A, 1 + SLOT_TENANCY_CUT);
	assert_true(guest_visit(t, 0, A, 1 + SLOT_TENANCY_CUT));
	slot_tenancy_free(&t);
}

static void the_slot_with_the_longest_common_beginning_is_chosen(void **state)
{
	(void)state;
	struct slot_tenancy *t = tenancy_of(3);
	struct slot_guest a = guest_in(SLOTS_NONE, A), b = guest_in(SLOTS_NONE, B);
	assert_int_equal(slot_tenancy_choose(t, &a), 0);
	(void)guest_visit(t, 0, A, 1);
	assert_int_equal(slot_tenancy_choose(t, &a), 0);
	assert_int_equal(slot_tenancy_choose(t, &b), 1);
	(void)guest_visit(t, 1, B, 1);
	(void)guest_visit(t, 2, B, 1);
	assert_int_equal(slot_tenancy_choose(t, &a), 0);
	assert_int_equal(slot_tenancy_choose(t, &b), 1); /* the one unused for longest wins */
	struct slot_guest other = {.owner = A, .chain = chain_a + 1, .n = 7};
	assert_int_equal(slot_tenancy_choose(t, &other), 0); /* nothing in common: unused for longest */
	struct slot_guest in = guest_in(0, A);
	(void)slot_tenancy_enter(t, &in, false, 1);
	assert_int_equal(slot_tenancy_choose(t, &a), 1); /* an idle slot before a busy one */
	slot_tenancy_size(t, 0);
	assert_int_equal(slot_tenancy_choose(t, &a), SLOTS_NONE);
	slot_tenancy_leave(t, &in, false, 1);
	slot_tenancy_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_slot_serves_its_last_owner_alone),
		cmocka_unit_test(a_restored_state_is_the_owners),
		cmocka_unit_test(requests_that_wait_for_one_slot_may_change_places),
		cmocka_unit_test(a_slot_that_the_engine_chooses_makes_all_unknown),
		cmocka_unit_test(a_request_that_was_cut_off_may_begin_later),
		cmocka_unit_test(the_slot_with_the_longest_common_beginning_is_chosen),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
