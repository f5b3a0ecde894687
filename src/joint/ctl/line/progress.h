/* SPDX-License-Identifier: Apache-2.0 */
/* progress: a line on standard error that each call overwrites. Writes nothing unless standard error is a
 * terminal. One thread. */
#pragma once
#include <stdbool.h>

bool ctl_progress_shown(void); /* True when standard error is a terminal. */
void ctl_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ctl_progress_end(void); /* Clears the line. */
/* "[####....]" with 30 places. */
struct ctl_bar {
	char text[33];
};
struct ctl_bar ctl_bar(double part);
