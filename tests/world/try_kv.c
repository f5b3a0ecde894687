/* SPDX-License-Identifier: Apache-2.0 */
/* try_kv: block stores in the simulated world. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "world.h"

extern int cgn_kvcached_main(int argc, char **argv);

static void story_run(void *arg)
{
	(void)arg;
	struct world_host *a = world_host_new("node-a");
	const char *c =
		"[security]\ninsecure = true\n[kv]\nram = \"16MiB\"\nworker_threads = 2\npoll_us = 0\nuds = \"/run/kv.sock\"\nlisten_admin = \"127.0.0.1:7093\"\nssd = \"32MiB\"\nssd_dir = \"/var/kv\"\n";
	world_file_put(a, "/etc/cgn.toml", c, strlen(c));
	world_file_put(a, "/run/.keep", "", 0);
	world_file_put(a, "/tmp/.keep", "", 0);
	world_file_put(a, "/var/.keep", "", 0);
	const char *const argv[] = {"cgn-kvcached", "--config", "/etc/cgn.toml", NULL};
	struct world_proc *p = world_start(a, "cgn-kvcached", cgn_kvcached_main, argv);
	world_sleep(5 * WORLD_SEC);
	world_signal(p, 15);
	world_sleep(10 * WORLD_SEC);
}

int main(int argc, char **argv)
{
	world_tells = argc > 2;
	world_begin(argc > 1 ? strtoull(argv[1], NULL, 0) : 1);
	world_run(story_run, NULL);
	printf("hash %016llx steps %llu\n", (unsigned long long)world_hash(),
		(unsigned long long)world_steps());
	fflush(stdout);
	_exit(0);
}
