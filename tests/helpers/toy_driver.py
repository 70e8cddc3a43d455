"""Does toy units on a Ray cluster: python toy_driver.py ADDRESS FOLDER COUNT SECONDS."""

import sys

import toy_units

from vmsst.units import engines, ray_cluster

if __name__ == "__main__":
  address, folder, count, seconds = sys.argv[1:]
  units = toy_units.squares(folder, int(count), toy_units.Staged, seconds=float(seconds))
  engines.run("squares", units, ray_cluster.Ray(address))
