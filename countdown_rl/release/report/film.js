"use strict";
const film = document.getElementById("film");
const [slider, play, output] = ["input", ".play", "output"].map(name => film.querySelector(name));
const puzzles = [...film.querySelectorAll(".puzzle")], frames = [...film.querySelectorAll(".frame")];
const steps = slider.dataset.steps.split(",");
let chosen = Number(film.dataset.chosen), timer;

function show() {
  const index = Number(slider.value);
  let solved = 0;
  puzzles.forEach((puzzle, number) => {
    const share = Number(puzzle.dataset.shares.split(",")[index]);
    solved += share;
    puzzle.classList.toggle("right", share === 1);
    puzzle.classList.toggle("part", share > 0 && share < 1);
    puzzle.setAttribute("aria-pressed", number === chosen);
  });
  output.textContent = `step ${steps[index]}: ${Number(solved.toFixed(1))} of ${puzzles.length} solved`;
  for (const frame of frames) frame.hidden = frame.dataset.frame !== `${chosen} ${index}`;
}

function stop() {
  clearInterval(timer);
  timer = undefined;
  play.textContent = "Play";
}

slider.addEventListener("input", () => { stop(); show(); });
puzzles.forEach((puzzle, number) => puzzle.addEventListener("click", () => { chosen = number; show(); }));
play.addEventListener("click", () => {
  if (timer) return stop();
  if (slider.value === slider.max) slider.value = 0;
  play.textContent = "Pause";
  show();
  timer = setInterval(() => {
    slider.stepUp();
    show();
    if (slider.value === slider.max) stop();
  }, 900);
});
show();
