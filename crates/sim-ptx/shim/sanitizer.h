// The sanitizer works in the simulator alone.
#pragma once
