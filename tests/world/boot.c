/* SPDX-License-Identifier: Apache-2.0 */
/* boot: a first look: a router, an agent, an engine, a request. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

extern int cgn_router_main(int argc, char **argv);
extern int cgn_agent_main(int argc, char **argv);
extern int cgn_sim_main(int argc, char **argv);

static int call_dial(const char *ip, int port)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	inet_pton(AF_INET, ip, &a.sin_addr);
	if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static void router_ask(const char *ip, int port, const char *text)
{
	char answer[8192];
	int fd = call_dial(ip, port);
	if (fd < 0) {
		world_tell("no connection to %s:%d", ip, port);
		return;
	}
	send(fd, text, strlen(text), 0);
	size_t n = 0;
	ssize_t got;
	while (n < sizeof answer - 1 && (got = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0)
		n += (size_t)got;
	answer[n] = 0;
	world_tell("answer: %s", answer);
	close(fd);
}

static void story_run(void *arg)
{
	(void)arg;
	struct world_host *r = world_host_new("router"), *a = world_host_new("node-a");
	const char *rc =
		"[security]\ninsecure = true\n[router]\nlisten = \"0.0.0.0:8080\"\nlisten_grpc = \"0.0.0.0:9090\"\nlisten_admin = \"0.0.0.0:9091\"\nworker_threads = 2\n[cluster]\nstate_backend = \"embedded\"\nstate_dir = \"/var/lib/cgn\"\n";
	world_file_put(r, "/etc/cgn.toml", rc, strlen(rc));
	world_file_put(r, "/var/lib/cgn/.keep", "", 0);
	world_file_put(r, "/tmp/.keep", "", 0);
	char ac[1000];
	snprintf(ac, sizeof ac,
		"[security]\ninsecure = true\n[agent]\nnode_id = \"a\"\nlisten = \"0.0.0.0:7080\"\nlisten_admin = \"0.0.0.0:7081\"\nadvertise = \"%s:7080\"\n[cluster]\nstate_backend = \"embedded\"\nrouter = \"%s:9090\"\n[engine]\nkind = \"sim\"\nmodel = \"m\"\nurl = \"http://127.0.0.1:8000\"\n",
		world_host_address(a), world_host_address(r));
	world_file_put(a, "/etc/cgn.toml", ac, strlen(ac));
	world_file_put(a, "/tmp/.keep", "", 0);
	const char *const sim[] = {"cgn-sim", "--model", "m", "--listen", "127.0.0.1:8000", NULL};
	const char *const agent[] = {"cgn-agent", "--config", "/etc/cgn.toml", NULL};
	const char *const router[] = {"cgn-router", "--config", "/etc/cgn.toml", NULL};
	world_start(a, "cgn-sim", cgn_sim_main, sim);
	struct world_proc *p = world_start(r, "cgn-router", cgn_router_main, router);
	world_start(a, "cgn-agent", cgn_agent_main, agent);
	world_sleep(5 * WORLD_SEC);
	const char *body = "{\"model\":\"m\",\"prompt\":\"hello\",\"max_tokens\":8}";
	char text[500];
	snprintf(text, sizeof text,
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
		strlen(body), body);
	router_ask(world_host_address(r), 8080, text);
	world_signal(p, 15);
	world_sleep(10 * WORLD_SEC);
}

int main(int argc, char **argv)
{
	world_tells = world_logs = argc > 2;
	world_begin(argc > 1 ? strtoull(argv[1], NULL, 0) : 1);
	world_run(story_run, NULL);
	printf("hash %016llx steps %llu\n", (unsigned long long)world_hash(),
		(unsigned long long)world_steps());
	fflush(stdout);
	_exit(0);
}
