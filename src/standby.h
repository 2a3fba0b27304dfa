/*-------------------------------------------------------------------------
 *
 * standby.h
 *	  What is told must not be lost with this server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_STANDBY_H
#define MIP_STANDBY_H

extern void mip_wait_for_standbys(void);

#endif							/* MIP_STANDBY_H */
