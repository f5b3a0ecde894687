/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <string.h>

#include <arpa/inet.h>

#include "io/net/net/name.h"

#define AT (100 * CGN_SEC)

/* A list of addresses as getaddrinfo returns it. */
struct found {
	struct addrinfo ai[NET_NAME_ADDRESSES + 4];
	struct sockaddr_in in[NET_NAME_ADDRESSES + 4];
};

static union net_sockaddr sockaddr_of(const char *host, unsigned port)
{
	union net_sockaddr a = {.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
	assert_int_equal(inet_pton(AF_INET, host, &a.v4.sin_addr), 1);
	return a;
}

static const struct addrinfo *found_list(struct found *f, unsigned port, const char *const *hosts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		f->in[i] = sockaddr_of(hosts[i], port).v4;
		f->ai[i] = (struct addrinfo){.ai_family = AF_INET,
			.ai_addr = (struct sockaddr *)&f->in[i],
			.ai_addrlen = sizeof f->in[i],
			.ai_next = i + 1 < n ? &f->ai[i + 1] : NULL};
	}
	return n > 0 ? &f->ai[0] : NULL;
}

static struct net_name *name_of(const char *text)
{
	struct net_addr a;
	assert_true(cgn_ok(net_addr_parse(text, &a, NULL)));
	struct net_name *n = net_name_get(&a);
	assert_non_null(n);
	return n;
}

/* Tell |n| that a look-up at |when| found |hosts|, a list that ends with NULL; returns the first address to try. */
static const char *name_told(struct net_name *n, cgn_nsec when, unsigned port, const char *const *hosts)
{
	static char text[64];
	struct net_addresses out;
	struct found f;
	size_t k = 0;
	while (hosts[k] != NULL)
		k++;
	const struct addrinfo *list = found_list(&f, port, hosts, k);
	text[0] = '\0';
	if (net_name_told(n, when, k > 0 ? 0 : EAI_NONAME, list, &out))
		net_addr_text(&out.at[0].any, text, sizeof text);
	return text;
}

#define HOSTS(...)                \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}
#define NOWHERE               \
	(const char *const[]) \
	{                     \
		NULL          \
	}

static void the_chosen_address_stays_while_the_name_has_it(void **state)
{
	(void)state;
	struct net_name *n = name_of("stays.test:80"), *same = name_of("stays.test:80");
	uint64_t version = 0;
	assert_ptr_equal(n, same);
	assert_string_equal(name_told(n, AT, 80, HOSTS("10.0.0.1", "10.0.0.2")), "10.0.0.1:80");
	assert_true(net_name_is(same, "10.0.0.1:80", &version));
	assert_string_equal(name_told(n, AT + 1, 80, HOSTS("10.0.0.2", "10.0.0.1")), "10.0.0.1:80");
	assert_true(net_name_is(same, "10.0.0.1:80", &version));
	assert_string_equal(name_told(n, AT + 2, 80, HOSTS("10.0.0.2")), "10.0.0.2:80");
	assert_false(net_name_is(same, "10.0.0.1:80", &version));
	assert_true(net_name_is(same, "10.0.0.2:80", &version));
	net_name_free(&n);
	net_name_free(&same);
}

static void a_failed_or_an_older_look_up_changes_nothing(void **state)
{
	(void)state;
	struct net_name *n = name_of("fails.test:80");
	assert_string_equal(name_told(n, AT, 80, NOWHERE), "");
	assert_string_equal(name_told(n, AT + 1, 80, HOSTS("10.0.0.1")), "10.0.0.1:80");
	assert_string_equal(name_told(n, AT + 2, 80, NOWHERE), "10.0.0.1:80");
	assert_string_equal(name_told(n, AT, 80, HOSTS("10.0.0.9")), "10.0.0.1:80");
	net_name_free(&n);
}

static void a_name_is_looked_up_again_after_the_interval_or_a_failure(void **state)
{
	(void)state;
	struct net_name *n = name_of("due.test:80");
	struct net_addresses all;
	assert_false(net_name_addresses(n, AT, &all)); /* The name was never looked up. */
	(void)name_told(n, AT, 80, HOSTS("10.0.0.1"));
	assert_true(net_name_addresses(n, AT + net_name_interval() - 1, &all));
	assert_int_equal(all.n, 1);
	assert_false(net_name_addresses(n, AT + net_name_interval(), &all));
	net_name_fails(n);
	assert_true(net_name_addresses(n, AT + CGN_SEC - 1, &all));
	assert_false(net_name_addresses(n, AT + CGN_SEC, &all));
	assert_true(net_name_addresses(n, AT - CGN_SEC, &all)); /* Another thread's clock is a turn behind. */
	net_name_free(&n);
}

static void an_address_that_takes_no_connection_is_left(void **state)
{
	(void)state;
	struct net_name *n = name_of("left.test:80");
	struct net_addresses all;
	uint64_t version = 0;
	const union net_sockaddr one = sockaddr_of("10.0.0.1", 80), two = sockaddr_of("10.0.0.2", 80);
	(void)name_told(n, AT, 80, HOSTS("10.0.0.1", "10.0.0.2"));
	net_name_works(n, &one, &one);
	assert_true(net_name_is(n, "10.0.0.1:80", &version));
	net_name_works(n, &one, &two);
	assert_true(net_name_is(n, "10.0.0.2:80", &version));
	net_name_works(n, &one, &one); /* This connection began before the choice. */
	assert_true(net_name_is(n, "10.0.0.2:80", &version));
	assert_true(net_name_addresses(n, AT, &all));
	assert_int_equal(all.n, 2);
	assert_memory_equal(&all.at[0], &two, sizeof two);
	net_name_shun(n, "10.0.0.1:80");
	assert_true(net_name_is(n, "10.0.0.2:80", &version));
	net_name_shun(n, "10.0.0.2:80");
	assert_false(net_name_is(n, "10.0.0.2:80", &version));
	assert_true(net_name_is(n, "10.0.0.1:80", &version));
	(void)name_told(n, AT + 1, 80, HOSTS("10.0.0.1"));
	net_name_shun(n, "10.0.0.1:80"); /* There is no other. */
	assert_true(net_name_is(n, "10.0.0.1:80", &version));
	net_name_free(&n);
}

static void two_ports_of_a_host_use_one_address(void **state)
{
	(void)state;
	struct net_name *n = name_of("ports.test:80"), *events = name_of("ports.test:5557");
	assert_string_equal(name_told(n, AT, 80, HOSTS("10.0.0.2", "10.0.0.1")), "10.0.0.2:80");
	assert_string_equal(name_told(events, AT, 5557, HOSTS("10.0.0.1", "10.0.0.2")), "10.0.0.2:5557");
	net_name_free(&n);
	net_name_free(&events);
}

static void a_name_without_a_user_is_known_for_a_while(void **state)
{
	(void)state;
	struct net_addresses all;
	struct net_name *n = name_of("kept.test:80");
	(void)name_told(n, AT, 80, HOSTS("10.0.0.7"));
	net_name_free(&n);
	n = name_of("kept.test:80");
	assert_true(net_name_addresses(n, AT, &all));
	net_name_free(&n);
	for (unsigned i = 0; i < 1000; i++) { /* The number of unused names is bounded. */
		char text[40];
		(void)snprintf(text, sizeof text, "other%u.test:80", i);
		struct net_name *other = name_of(text);
		net_name_free(&other);
	}
	n = name_of("kept.test:80");
	assert_false(net_name_addresses(n, AT, &all));
	net_name_free(&n);
}

static void no_more_addresses_than_fit_are_taken(void **state)
{
	(void)state;
	struct net_addresses all;
	struct found f;
	const char *hosts[NET_NAME_ADDRESSES + 4];
	for (size_t i = 0; i < NET_NAME_ADDRESSES + 4; i++)
		hosts[i] = "10.0.0.1";
	net_addresses_take(&all, found_list(&f, 80, hosts, NET_NAME_ADDRESSES + 4));
	assert_int_equal(all.n, NET_NAME_ADDRESSES);
	net_addresses_take(&all, NULL);
	assert_int_equal(all.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_chosen_address_stays_while_the_name_has_it),
		cmocka_unit_test(a_failed_or_an_older_look_up_changes_nothing),
		cmocka_unit_test(a_name_is_looked_up_again_after_the_interval_or_a_failure),
		cmocka_unit_test(an_address_that_takes_no_connection_is_left),
		cmocka_unit_test(two_ports_of_a_host_use_one_address),
		cmocka_unit_test(a_name_without_a_user_is_known_for_a_while),
		cmocka_unit_test(no_more_addresses_than_fit_are_taken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
