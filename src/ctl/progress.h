/* SPDX-License-Identifier: Apache-2.0 */
/* progress: one line on standard error that each call overwrites, for people who wait. Nothing at all where
 * that is no terminal. One thread. */
#pragma once
#include <stdbool.h>

bool ctl_progress_shown(void); /* is somebody looking? */
void ctl_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ctl_progress_end(void); /* the line is empty again */
/* "[####....]" of 30 places. */
struct ctl_bar {
	char text[33];
};
struct ctl_bar ctl_bar(double part);
