/* SPDX-License-Identifier: Apache-2.0 */
/* Writing lent buffers, reading into the reader's buffers, and several listeners on one socket. */
#include "io_net_world.h"

#include <sys/stat.h>
#include <sys/un.h>

#define BIG ((size_t)24 << 20) /* More than the kernel buffers. */

static unsigned loans_done;

static void on_paid(struct net_loan *l)
{
	assert_int_equal(l->left, 0);
	loans_done++;
}

static uint8_t *pattern_of(size_t n)
{
	uint8_t *p = malloc(n);
	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = pattern(i);
	return p;
}

/* Write |n| bytes of |p|: the first 100 copied, the rest lent in two parts. */
static void write_lent(struct net_conn *c, const uint8_t *p, size_t n, struct net_loan *loan)
{
	uint8_t head[100];
	memcpy(head, p, sizeof head);
	const struct net_part parts[] = {{head, 100, NULL}, {p + 100, n / 2, loan},
		{p + 100 + n / 2, n - 100 - n / 2, loan}};
	*loan = (struct net_loan){.done = on_paid};
	net_write_parts(c, parts, CGN_COUNT(parts));
	memset(head, 0, sizeof head);
}

static bool server_has_it_all(struct world *w)
{
	return w->server.bytes >= BIG + 100000;
}

static void what_is_lent_goes_out_from_where_it_lies(void **state)
{
	(void)state;
	struct world w;
	struct net_loan loan;
	uint8_t *p = pattern_of(BIG + 100000);
	world_open(&w);
	w.server.pause_first = true;
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	loans_done = 0;
	write_lent(w.client.c, p, BIG, &loan); /* Over the limit of bytes queued by copy. */
	assert_true(net_is_open(w.client.c));
	assert_true(net_over_mark(w.client.c));
	assert_true(loan.left > 0 && loan.left == net_queued(w.client.c));
	assert_int_equal(loans_done, 0);
	write_pattern(w.client.c, BIG, 100000); /* Stays behind the lent bytes. */
	net_resume(w.server.c);
	run_until(&w, server_has_it_all);
	assert_int_equal(w.server.bytes, BIG + 100000);
	assert_true(w.server.sum == pattern_sum(BIG + 100000));
	assert_int_equal(loans_done, 1);
	assert_int_equal(w.client.drains, 1);
	world_close(&w);
	free(p);
}

static void a_loan_that_fits_is_paid_at_once(void **state)
{
	(void)state;
	struct world w;
	struct net_loan loan;
	uint8_t *p = pattern_of(1000);
	world_open(&w);
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	loans_done = 0;
	net_write_parts(w.client.c, NULL, 0);
	write_lent(w.client.c, p, 1000, &loan);
	assert_int_equal(loans_done, 1);
	world_close(&w);
	free(p);
}

static void a_closed_connection_gives_back_its_loans(void **state)
{
	(void)state;
	struct world w;
	struct net_loan loan[3];
	uint8_t *p = pattern_of(BIG);
	world_open(&w);
	w.server.pause_first = true;
	world_dial(&w, &(struct net_dial){.addr = w.addr});
	run_until(&w, both_open);
	loans_done = 0;
	write_lent(w.client.c, p, BIG, &loan[0]);
	write_lent(w.client.c, p, BIG, &loan[1]);
	assert_int_equal(loans_done, 0);
	net_abort(w.client.c);
	assert_int_equal(loans_done, 2);
	write_lent(w.client.c, p, BIG, &loan[2]); /* The connection is gone, so the loan comes back. */
	assert_int_equal(loans_done, 3);
	run_until(&w, client_closed);
	world_close(&w);
	free(p);
}

/* ---- a socket, several listeners ---- */

#define CROWD 40

static unsigned accepted[2];

static void count_accept(void *user, struct net_conn *c)
{
	(void)c;
	++*(unsigned *)user; /* The connection is not taken, so it is closed. */
}

static bool all_accepted(struct world *w)
{
	(void)w;
	return accepted[0] + accepted[1] ==
		CROWD + 1; /* The extra connection is the probe whether a server answers. */
}

static void listeners_share_a_socket(void **state)
{
	(void)state;
	struct world w = {0};
	struct net_listener *a = NULL, *b = NULL;
	struct stat st;
	char path[64], addr[80];
	int fds[CROWD];
	(void)snprintf(path, sizeof path, "/tmp/cgn-shared-%d.sock", (int)getpid());
	(void)snprintf(addr, sizeof addr, "unix:%s", path);
	assert_true(cgn_ok(cgn_loop_new(&w.l, NULL)));
	struct net_listen_cfg cfg = {.addr = addr};
	assert_true(cgn_ok(net_listen(w.l, &cfg, count_accept, &accepted[0], &a, NULL)));
	/* The path is taken. */
	assert_false(cgn_ok(net_listen(w.l, &cfg, count_accept, &accepted[1], &b, NULL)));
	cfg.with = a;
	assert_true(cgn_ok(net_listen(w.l, &cfg, count_accept, &accepted[1], &b, NULL)));
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	memcpy(sa.sun_path, path, strlen(path) + 1);
	for (size_t i = 0; i < CROWD; i++) {
		fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(connect(fds[i], (struct sockaddr *)&sa, sizeof sa), 0);
	}
	run_until(&w, all_accepted);
	assert_true(accepted[0] > 0 && accepted[1] > 0); /* Neither listener accepts all connections. */
	net_listener_close(&b);
	assert_int_equal(stat(path, &st), 0); /* The file belongs to the process that bound it. */
	net_listener_close(&a);
	assert_int_equal(stat(path, &st), -1);
	for (size_t i = 0; i < CROWD; i++)
		close(fds[i]);
	cgn_loop_free(&w.l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_lent_goes_out_from_where_it_lies),
		cmocka_unit_test(a_loan_that_fits_is_paid_at_once),
		cmocka_unit_test(a_closed_connection_gives_back_its_loans),
		cmocka_unit_test(listeners_share_a_socket),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
