/*-------------------------------------------------------------------------
 *
 * stop.h
 *	  For tests, a point between two steps: see stop.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_STOP_H
#define MIP_STOP_H

extern void mip_stop_init(void);
extern void mip_stop_point(const char *name);

#endif							/* MIP_STOP_H */
